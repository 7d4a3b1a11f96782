"""`segue drill` in a CI job: JUnit XML, a summary, plain output, and the run's own settings."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from segue.cli.init import template
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import open_store
from tests.support.command import Desk

TINY = "segue.testing.recipes:tiny"


def suite_of(path: Path) -> ElementTree.Element:
    (suite,) = ElementTree.parse(path).getroot()
    return suite


@pytest.mark.matrix
def test_a_job_gets_the_xml_and_the_summary_and_plain_lines(desk: Desk, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(desk.folder / "summary.md"))
    desk.write("summary.md", "of the step before\n")
    outcome = desk.run("drill", TINY, "--steps", "60", "--kills", "1", "--notices", "1", "--ci")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert "\x1b" not in outcome.out
    assert outcome.out.splitlines()[-1] == (
        "after 1 kill and 1 notice the final state is identical to that of the uninterrupted run; verdict: exact"
    )
    suite = suite_of(desk.folder / "segue-drill.xml")
    names = [case.attrib["name"] for case in suite]
    assert (len(names), names[-1], suite.attrib["failures"]) == (3, "identity", "0")
    assert {name.rpartition(" ")[2] for name in names[:2]} == {"kill", "notice"}
    summary = (desk.folder / "summary.md").read_text()
    assert summary.startswith("of the step before\n### segue drill: passed\n")


@pytest.mark.matrix
def test_a_red_drill_keeps_its_runs_in_the_store_and_has_a_failure_with_the_fix(desk: Desk, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    config = f"[config]\nfault = 'optimizer_not_restored'\nmarker = '{desk.folder / 'marker'}'\n"
    fast = f"[checkpoints]\nfast_folder = '{desk.folder / 'fast'}'\n"
    desk.write("run.toml", config + fast)
    recipe = ("tests.recipes.faulty:build", "--config", "run.toml", "--steps", "60", "--kills", "1")
    outcome = desk.run("drill", *recipe, "--store", "mine", "--junit", "out/drill.xml")
    assert outcome.code == 3, outcome
    *_, fix, kept = outcome.out.splitlines()
    assert "Fix: restore all of optimizer in its load_state_dict" in fix
    place = Path(kept.removeprefix("both runs are kept in "))
    assert place.parent == desk.folder / "mine"
    assert open_store(place).folders() == ["killed", "reference"]
    assert int(suite_of(desk.folder / "out/drill.xml").attrib["failures"]) >= 2, "the resumes, and the final state"
    assert not (desk.folder / "fast").exists(), "it was not there before"


@pytest.mark.matrix
def test_a_recipe_that_fails_undisturbed_is_an_error_in_the_xml(desk: Desk, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(desk.folder / "summary.md"))
    desk.write("run.toml", "[config]\nraise_at_step = 5\n")
    outcome = desk.run("drill", TINY, "--config", "run.toml", "--steps", "60", "--ci")
    assert (outcome.code, outcome.out) == (1, "")
    suite = suite_of(desk.folder / "segue-drill.xml")
    assert (suite.attrib["tests"], suite.attrib["errors"], suite.attrib["failures"]) == ("1", "1", "0")
    assert "ArithmeticError" in suite.find("testcase/error").attrib["message"]
    assert (desk.folder / "summary.md").read_text().startswith("### segue drill: not made\n")


@pytest.mark.soak
def test_both_runs_keep_the_settings_of_the_run_and_work_in_places_of_their_own(make_spec, tmp_path):
    spec = make_spec(
        steps=160,
        checkpoints={
            "every_steps": 20,
            "every_seconds": 30,
            "keep": 4,
            "staging": "overlapped",
            "staging_buffers": 2,
            "full_every": 3,
            "fast_folder": str(tmp_path / "fast"),
        },
        liveness={"heartbeat_seconds": 3, "hang_seconds": 77, "first_step_seconds": 99},
        segment={"steps": 80},
        grace_seconds=11,
    )
    report = drill_spec(spec, kills=1, notices=1, folder=tmp_path / "work")
    assert report.passed, report
    assert (report.kills, report.notices, report.missed) == (1, 1, ())
    for name in ("reference", "killed"):
        used = read_history(RunLog(open_store(tmp_path / "work"), name).reload()).spec
        own = spec.checkpoints.model_dump(exclude={"fast_folder"})
        # By the clock, slow steps would have a commit after each.
        assert used.checkpoints.model_dump(exclude={"fast_folder"}) == own | {"every_seconds": None}
        assert Path(used.checkpoints.fast_folder).parent == tmp_path / "fast"
        assert used.liveness == spec.liveness.model_copy(update={"heartbeat_seconds": 0.2})
        assert (used.segment, used.grace_seconds) == (spec.segment, spec.grace_seconds)
    assert not (tmp_path / "fast").exists(), "it was not there before"


@pytest.mark.soak
def test_an_interval_that_is_too_long_for_the_kills_is_shortened_and_a_store_is_left_empty(make_spec, tmp_path):
    spec = make_spec(steps=60, checkpoints={"every_steps": 1000, "staging_buffers": 2})
    mine = StoreSpec(url=str(tmp_path / "mine"))
    report = drill_spec(spec, kills=1, store=mine)
    assert (report.passed, report.kept) == (True, None), report
    assert list((tmp_path / "mine").iterdir()) == []


def test_an_xml_that_cannot_be_written_is_refused_before_anything_is_trained(desk: Desk):
    desk.write("out", "a file of this name")
    assert "out/drill.xml cannot be written" in desk.refused("drill", TINY, "--junit", "out/drill.xml")


def test_the_workflow_writes_the_xml_that_it_uploads():
    job = yaml.safe_load(template(Path(".github/workflows/segue.yml")))["jobs"]["drill"]
    (command,) = [step["run"] for step in job["steps"] if "segue drill" in step.get("run", "")]
    (upload,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact")]
    assert "--ci" in command.split()
    assert upload["with"]["path"] == command.split()[command.split().index("--junit") + 1]
    assert upload["if"] == "always()"
