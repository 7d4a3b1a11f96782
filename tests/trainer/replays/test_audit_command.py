"""`segue audit` as a real process: its exit codes, its report, and the fix of its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.runlog.history import read_history
from tests.trainer.replays.wrong_machine import VARIABLE

ROOT = Path(__file__).parents[3]


def audit(*arguments, folder=ROOT):
    """Run the command in this folder, from which the recipe is imported."""
    command = [sys.executable, "-m", "segue", "audit", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


@pytest.fixture
def train(fork_server, make_spec, open_log):
    """Makes an attempt for each ten steps; each commits at its end. The attempt to step 30 may have a fault."""

    def made(fault="", *, steps):
        recipe, checkpoints = "tests.trainer.replays.wrong_machine:build", {"every_steps": 100, "keep": 9}
        spec = make_spec(recipe=recipe, checkpoints=checkpoints, steps=steps)
        runlog = open_log(spec)
        for end in range(10, steps + 1, 10):
            environment = {VARIABLE: fault} if fault and end == 30 else None
            fork_server.run_attempt(runlog, spec.model_copy(update={"steps": end}), environment=environment)
        return runlog, spec.store.url

    return made


@pytest.mark.matrix
def test_the_exit_code_tells_equal_steps_from_a_difference_and_the_report_names_the_host(train):
    runlog, store = train("25,0,3,12", steps=40)
    host = read_history(runlog).attempts[0].claim.host
    sound = audit("tiny", "--store", store, "--json")
    report = json.loads(sound.stdout)
    assert (sound.returncode, report["result"]) == (0, "exact"), sound.stderr
    assert (report["from_step"], report["to_step"]) == (30, 40)
    wrong = audit("tiny", "--store", store, "--from", "20", "--json")
    report = json.loads(wrong.stdout)
    assert (wrong.returncode, report["result"], report["differs_on"]) == (1, "differs", f"the machine {host}"), (
        wrong.stderr
    )
    assert (report["step"], report["replays"]) in ((25, 2), (26, 2))
    shown = audit("tiny", "--store", store, "--from", "20", "--steps", "4")
    assert shown.returncode == 0
    assert shown.stdout.startswith(
        f"exact: steps 21 to 24, trained on the machine {host}, replayed on {host}; 4 steps"
    ), shown


@pytest.mark.matrix
def test_an_audit_that_is_not_possible_exits_with_2_and_the_fix(train, tmp_path):
    runlog, store = train(steps=20)
    unknown = audit("tiny", "--store", store, "--from", "15")
    assert unknown.returncode == 2
    assert "10" in unknown.stderr.partition("Fix:")[2]
    (tmp_path / "segue").symlink_to(ROOT / "segue")  # The recipe cannot be imported from this folder.
    no_recipe = audit("tiny", "--store", store, folder=tmp_path)
    assert no_recipe.returncode == 2, no_recipe
    assert "in the folder of the run's recipe" in " ".join(no_recipe.stderr.split())
    assert "wrong_machine" in no_recipe.stderr
    assert len(read_history(runlog.reload()).usable) == 2


@pytest.mark.matrix
def test_a_finished_run_with_one_checkpoint_is_not_told_to_wait_for_another(train):
    runlog, store = train(steps=10)
    assert "after the next commit" in " ".join(audit("tiny", "--store", store).stderr.split())
    spec = read_history(runlog.reload()).spec.model_copy(update={"steps": 10})
    assert decide_next(runlog, spec, clock=SystemClock()).action == "finished"
    refused = audit("tiny", "--store", store)
    assert refused.returncode == 2
    assert "set checkpoints.every_steps for the next run" in " ".join(refused.stderr.split())
