"""A store that version 0.1 wrote resumes: records and keys keep their form, renamed settings their old names."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.records import VerdictKind
from segue.runlog.history import read_history
from segue.runlog.open import find_run
from segue.spec import RunSpec

STORE = Path(__file__).parents[1] / "fixtures" / "store-0.1"
OLD_NAMES = {
    "run_id": "kept",
    "recipe": "tests.recipes.kept_store:build",
    "steps": 200,
    "config": {"lr": 0.01},
    "threads": 1,
    "device": "cpu",
    "checkpoints": {"every_steps": 20, "keep": 2, "arenas": 1},
    "continuity": {"fire_drill": "off"},
    "liveness": {"heartbeat_seconds": 0.2, "lease_seconds": 30.0},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return shutil.copytree(STORE, tmp_path / "store")


@pytest.mark.matrix
def test_a_run_of_version_0_1_resumes_from_its_checkpoint_and_the_resume_is_verified(store):
    spec = RunSpec.parse(OLD_NAMES | {"store": {"url": str(store)}})
    runlog = open_run(spec, clock=SystemClock())
    before = read_history(runlog)
    assert (before.committed_step, before.open_plan.segment) == (145, 2)
    assert run_here(spec, runlog, on_line=lambda line: None).action == "finished"
    after = read_history(runlog)
    assert [report.to_step for report in after.reports] == [60, 145, 200]
    verdict = after.resumes[-1].verdict
    # Bit for bit where the instruction set is that of the machine which wrote the store, within tolerances elsewhere.
    assert verdict.kind in (VerdictKind.EXACT, VerdictKind.EQUIVALENT), verdict.sentence
    assert verdict.rows_compared == 8


def test_every_record_of_version_0_1_is_read_and_none_is_damaged(store):
    _, history = find_run("kept", store)
    assert history.damage == ()
    assert history.spec.liveness.heartbeat_timeout_seconds == 30.0
    assert history.spec.continuity.rehearsal == "off"
    assert [resume.verdict.kind for resume in history.resumes] == [VerdictKind.UNVERIFIED]


def test_a_file_with_a_renamed_setting_is_read_with_a_warning_that_names_the_new_one(tmp_path, caplog):
    file = tmp_path / "run.toml"
    file.write_text('run_id = "r"\nrecipe = "a:b"\nsteps = 1\n[liveness]\nlease_seconds = 7\n')
    with caplog.at_level(logging.WARNING):
        spec = RunSpec.from_toml(file)
    assert spec.liveness.heartbeat_timeout_seconds == 7
    assert "liveness.lease_seconds is now liveness.heartbeat_timeout_seconds" in caplog.text


def test_a_setting_given_by_both_names_is_refused(tmp_path):
    with pytest.raises(Exception, match="lease_seconds"):
        RunSpec.parse(OLD_NAMES | {"liveness": {"lease_seconds": 7, "heartbeat_timeout_seconds": 8}})
