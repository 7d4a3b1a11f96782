"""The metric that a program notes belongs to the weights with which it is committed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import segue
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/rated_loop.py"


@pytest.fixture
def make_program(make_spec):
    def make(*options):
        checkpoints = {"every_steps": 5, "keep": 100}
        continuity = {"rehearsal": "off", "witness_steps": 4}
        command = ["python", str(PROGRAM), *options]
        return make_spec(
            recipe=None, program={"command": command}, steps=40, checkpoints=checkpoints, continuity=continuity
        )

    return make


def rated(spec, runlog) -> dict[int, float]:
    """The metrics of all checkpoints, by their steps; each is that of the weights in it."""
    found = {}
    for checkpoint in read_history(runlog.reload()).checkpoints:
        manifest = checkpoint.manifest
        if manifest.metric is not None:
            model = segue.load_checkpoint(spec.run_id, store=spec.store, step=manifest.step)["model"]
            assert manifest.metric == model["weight"].sum().item(), manifest.step
            found[manifest.step] = manifest.metric
    return found


@pytest.mark.matrix
def test_a_metric_waits_for_the_save_before_and_is_never_that_of_other_weights(fork_server, make_program, open_log):
    spec = make_program("--rate-at")
    runlog = open_log(spec)
    assert fork_server.run_attempt(runlog, spec).stop_reason is StopReason.FINISHED
    assert [*rated(spec, runlog)] == [*range(1, 41)]


def test_a_metric_of_a_replayed_step_is_noted_and_the_steps_until_then_decide(fork_server, make_program, open_log):
    hangs = make_program("--hang-at", "9")
    runlog = open_log(hangs)
    first = fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    assert first.stop_reason is StopReason.LOST
    spec = make_program("--rate-at", "7")
    assert fork_server.run_attempt(runlog, spec).from_step == 5
    assert [*rated(spec, runlog)] == [7]
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 2)
