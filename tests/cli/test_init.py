"""`segue init`: what it writes works, and nothing that exists is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prefect.utilities.templating import apply_values

from segue.cli.init import FILES, PoolService, template
from segue.doctor.pools.judgement import refusals
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.segment_job import PoolJob, job_of
from segue.spec import RunSpec, read_toml
from tests.support.command import Desk


def written(desk: Desk) -> dict[str, str]:
    paths = (path for path in desk.folder.rglob("*") if path.is_file())
    return {path.relative_to(desk.folder).as_posix(): path.read_text() for path in paths}


def test_every_template_is_written_as_it_is_and_the_next_commands_are_shown(desk):
    outcome = desk.run("init")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[:-2] == [f"wrote {path}" for path in FILES]
    assert outcome.out.splitlines()[-2:] == [
        "Next: segue drill train:build --config run.toml",
        "Then: segue run train:build --config run.toml",
    ]
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


@pytest.mark.parametrize("cloud", ["eks", "gke", "aks"])
def test_kubernetes_pools_get_manifests_templates_and_deployments_without_folders(desk, cloud):
    outcome = desk.run("init", "--pools", cloud)
    assert (outcome.code, outcome.err) == (0, "")
    files = written(desk)
    assert not {"deployments/process.json", "deployments/create-pools.sh"} & files.keys()
    top = [path for path in files if Path(path).parent.as_posix() == "deployments/kubernetes"]
    manifests = [document for path in top if path.endswith(".yaml") for document in yaml.safe_load_all(files[path])]
    assert all({"apiVersion", "kind", "metadata"} <= document.keys() for document in manifests)
    for pool in ("spot", "on-demand", "parents"):
        template_of_pool = json.loads(files[f"deployments/kubernetes/pools/{pool}.json"])
        assert template_of_pool["job_configuration"]["job_manifest"]["kind"] == "Job"
    deployments = yaml.safe_load(files["prefect.yaml"])["deployments"]
    assert [found["work_pool"] for found in deployments][:3] == [
        {"name": "spot"},
        {"name": "on-demand"},
        {"name": "parents"},
    ]
    assert "SEGUE_HOME" not in files["prefect.yaml"]
    before = yaml.safe_load(template(Path("prefect.yaml")))["deployments"]
    assert [interval_of_recover(each) for each in (deployments, before)] == [300, 30], "each look starts a container"
    for found in (*deployments, *before):
        found["work_pool"] = None
        for changed in ("grace_seconds", "notices"):
            found.get("parameters", {}).get("spec", {}).pop(changed, None)
        for schedule in found.get("schedules", ()):
            schedule.pop("interval", None)
    assert deployments == before


@pytest.mark.parametrize(
    ("pools", "grace_seconds"),
    [("process", 25), ("eks", 109), ("gke", 14), ("aks", 19), ("fargate", 119), ("ecs", 119)],
)
def test_the_start_check_accepts_the_project_as_it_is_written(desk, pools, grace_seconds):
    desk.run("init", "--pools", pools)
    files = written(desk)
    of_run = RunSpec.parse(read_toml(desk.folder / "run.toml") | {"recipe": "train:build", "run_id": "train"})
    deployments = yaml.safe_load(files["prefect.yaml"])["deployments"]
    (verification,) = [found for found in deployments if found["name"] == "verify-resume"]
    of_verification = RunSpec.parse(verification["parameters"]["spec"])
    of_slots = RunSpec.parse(read_toml(desk.folder / "retrain.toml")["run"] | {"run_id": "train"})
    notices = {"process": None, "aks": ("azure",), "ecs": ("aws",)}.get(pools, ())
    assert [spec.grace_seconds for spec in (of_run, of_verification, of_slots)] == [grace_seconds] * 3
    assert [spec.notices for spec in (of_run, of_verification, of_slots)] == [notices] * 3
    for pool in ("spot", "on-demand"):
        job = job_of_pool(files, pool)
        assert job.is_known
        state = PoolState(f"segment/{pool}", pool, workers=1, known_workers=1, job=job)
        assert refusals([state], Needs(grace_seconds=grace_seconds)) == []


def interval_of_recover(deployments):
    (recover,) = [found for found in deployments if found["name"] == "recover"]
    return recover["schedules"][0]["interval"]


def job_of_pool(files: dict[str, str], pool: str) -> PoolJob:
    """The job of a pool's template with its defaults."""
    kinds = {f"deployments/{kind}/pools/{pool}.json": kind for kind in ("kubernetes", "ecs")}
    (path,) = files.keys() & {"deployments/process.json", *kinds}
    found = json.loads(files[path])
    defaults = {name: one["default"] for name, one in found["variables"]["properties"].items() if one.get("default")}
    return job_of(kinds.get(path, "process"), apply_values(found["job_configuration"], defaults))


@pytest.mark.parametrize("pools", [pools for pools in PoolService if pools is not PoolService.PROCESS])
def test_images_get_neither_history_nor_secrets_nor_runs(desk, pools):
    desk.run("init", "--pools", pools)
    left_out = (desk.folder / ".dockerignore").read_text().splitlines()
    assert {".git", ".segue", ".env*", ".venv", "deployments"} <= set(left_out)
    assert "wheels" not in left_out


def test_a_dockerignore_that_exists_is_kept(desk):
    desk.write(".dockerignore", "mine\n")
    assert "kept  .dockerignore (it exists)" in desk.run("init", "--pools", "eks").out
    assert (desk.folder / ".dockerignore").read_text() == "mine\n"


@pytest.mark.parametrize(("cloud", "extra"), [("eks", "s3"), ("gke", "gcs"), ("aks", "azure")])
def test_images_reach_the_object_store_of_their_cloud(desk, cloud, extra):
    desk.run("init", "--pools", cloud)
    images = {path: text for path, text in written(desk).items() if "/images/" in path}
    assert f"[prefect,kubernetes,{extra},data]" in images["deployments/kubernetes/images/Dockerfile.cpu"]
    assert f"[prefect,{extra},data]" in images["deployments/kubernetes/images/Dockerfile.cuda"]


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_images_install_the_wheel_of_segue_that_is_there(desk, tmp_path, image):
    desk.run("init", "--pools", "ecs")
    text = written(desk)[f"deployments/ecs/images/Dockerfile.{image}"]
    commands = [line.removeprefix("RUN ") for line in text.splitlines() if "/wheels/segue-" in line]
    script = "\n".join(["set -e", 'pip() { echo "$@"; }', *commands]).replace("/wheels", str(tmp_path))

    def build() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", script], text=True, capture_output=True)  # noqa: PLW1510 - it may fail

    assert build().stdout == "wheels/ must hold exactly one wheel of segue\n"
    (tmp_path / "segue-0.1.0-py3-none-any.whl").touch()
    assert build().stdout.split()[-1].startswith(f"{tmp_path}/segue-0.1.0-py3-none-any.whl[prefect,")
    (tmp_path / "segue-0.2.0-py3-none-any.whl").touch()
    assert build().returncode == 1


@pytest.mark.parametrize("kind", ["fargate", "ecs"])
def test_ecs_pools_get_templates_rights_and_images(desk, kind):
    outcome = desk.run("init", "--pools", kind)
    assert (outcome.code, outcome.err) == (0, "")
    files = written(desk)
    spot = json.loads(files["deployments/ecs/pools/spot.json"])["job_configuration"]["task_definition"]
    assert spot["requiresCompatibilities"] == ["FARGATE" if kind == "fargate" else "EC2"]
    assert "Statement" in json.loads(files["deployments/ecs/worker-policy.json"])
    assert "[prefect,ecs,s3,data]" in files["deployments/ecs/images/Dockerfile.cpu"]
    assert "kubernetes" not in "".join(text for path, text in files.items() if path.startswith("deployments/ecs"))
    assert "deployments/ecs/create-pools.sh" in files["prefect.yaml"]
