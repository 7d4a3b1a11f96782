"""`segue init`: what it writes works, and nothing that exists is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from segue.cli.init import FILES, template
from segue.spec import RunSpec, read_toml
from tests.support.command import Desk


def written(desk: Desk) -> dict[str, str]:
    paths = (path for path in desk.folder.rglob("*") if path.is_file())
    return {path.relative_to(desk.folder).as_posix(): path.read_text() for path in paths}


def test_every_template_is_written_as_it_is_and_the_next_commands_are_shown(desk):
    outcome = desk.run("init")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[:-1] == [f"wrote {path}" for path in FILES]
    assert outcome.out.splitlines()[-1] == "Next: segue drill train:build, then segue run train:build --steps 300"
    assert written(desk) == {path: template(Path(path)) for path in FILES}


def test_a_file_that_exists_is_kept_and_named(desk):
    desk.write("train.py", "mine = True\n")
    outcome = desk.run("init")
    assert outcome.code == 0
    assert outcome.out.splitlines()[:2] == ["kept  train.py (it exists)", "wrote run.toml"]
    before = written(desk)
    assert before["train.py"] == "mine = True\n"
    again = desk.run("init")
    assert (again.code, again.out.count("wrote")) == (0, 0)
    assert written(desk) == before


def test_diff_shows_what_this_version_would_write_and_writes_nothing(desk):
    outcome = desk.run("init", "--diff")
    assert (outcome.code, written(desk)) == (0, {})
    assert outcome.out.count("--- /dev/null\n") == len(FILES)
    desk.run("init")
    assert desk.run("init", "--diff").out == ""
    text = template(Path("run.toml"))
    desk.write("run.toml", text.replace("steps = 300", "steps = [900]"))
    lines = desk.run("init", "--diff").out.splitlines()
    assert lines[:2] == ["--- run.toml", "+++ run.toml"]
    assert [line for line in lines[2:] if line.startswith(("-", "+"))] == ["-steps = [900]", "+steps = 300"]


def test_a_diff_can_be_applied(desk):
    desk.run("init")
    desk.write("prefect.yaml", template(Path("prefect.yaml")).replace("name: segue\n", "name: other\n"))
    patch = desk.run("init", "--diff").out
    subprocess.run(["patch", "-p0"], input=patch, text=True, cwd=desk.folder, check=True, capture_output=True)
    assert written(desk)["prefect.yaml"] == template(Path("prefect.yaml"))


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(desk):
    desk.write("deployments", "a file of this name")
    outcome = desk.run("init")
    assert outcome.code == 2
    assert "deployments/process.json cannot be written (File exists)" in outcome.err


def test_the_run_spec_is_one(desk):
    spec = RunSpec.parse(read_toml_of("run.toml", desk) | {"recipe": "train:build", "run_id": "train"})
    defaults = RunSpec(recipe="train:build", run_id="train", steps=300)
    # It shows the defaults, and sets nothing else but the example's config.
    assert spec == defaults.model_copy(update={"config": {"learning_rate": 0.003}})


def read_toml_of(name: str, desk: Desk):
    desk.write(name, template(Path(name)))
    return read_toml(desk.folder / name)


def test_the_other_templates_are_what_their_names_say():
    assert {found["name"] for found in yaml.safe_load(template(Path("prefect.yaml")))["deployments"]} >= {"train"}
    assert list(yaml.safe_load(template(Path(".github/workflows/segue.yml")))["jobs"]) == ["drill"]
    assert set(json.loads(template(Path("deployments/process.json")))) == {"job_configuration", "variables"}
    script = template(Path("deployments/create-pools.sh"))
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_every_setting_of_a_template_has_a_comment_or_a_description():
    for path in ("run.toml", "prefect.yaml", ".github/workflows/segue.yml"):
        assert sum(line.lstrip().startswith("#") for line in template(Path(path)).splitlines()) >= 4
    variables = json.loads(template(Path("deployments/process.json")))["variables"]["properties"]
    assert all(variable["description"] for variable in variables.values())


@pytest.mark.matrix
def test_the_example_trains_in_a_plain_loop(desk):
    desk.write("train.py", template(Path("train.py")))
    told = subprocess.check_output([sys.executable, "train.py"], cwd=desk.folder, text=True).splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in told]
    assert [line.split(",")[0] for line in told] == ["step 100 of 300", "step 200 of 300", "step 300 of 300"]
    assert losses[-1] < losses[0]


@pytest.mark.matrix
def test_the_example_passes_the_drill(desk):
    desk.write("train.py", template(Path("train.py")))
    report = desk.told("drill", "train:build", "--steps", "40", "--kills", "1")
    assert (report["verdict"], report["identical"]) == ("exact", True)
