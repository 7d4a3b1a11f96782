"""State outside the components, and what a step leaves behind, over a real resume."""

from __future__ import annotations

import os
import signal

import pytest

from segue.continuity.naming import UNREGISTERED
from segue.records import StopReason, VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.history import read_history

pytestmark = pytest.mark.matrix


def resumed(fork_server, make_spec, open_log, tmp_path, kind):
    """Train to step 18, where the commit of step 10 has all its witness rows, raise, and resume from there."""
    config = {"kind": kind, "marker": str(tmp_path / "marker"), "raise_at_step": 19}
    spec = make_spec(recipe="tests.recipes.outside:build", config=config, steps=24)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    first = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, CommitEntry)]
    assert [entry.manifest.step for entry in first] == [10]
    report = fork_server.run_attempt(runlog, spec)
    return first[0], report, read_history(runlog).attempts[-1].verdict


@pytest.mark.parametrize(
    ("kind", "channel", "named"),
    [
        ("replay_buffer", "loss", "loss.buffer"),
        ("generator_of_the_loss", "loss", "loss.noise"),
        ("average_of_the_metric", "evaluate", "held"),
    ],
)
def test_unregistered_state_is_named_at_the_first_commit_and_where_the_resume_differs(
    fork_server, make_spec, open_log, tmp_path, kind, channel, named
):
    commit, report, verdict = resumed(fork_server, make_spec, open_log, tmp_path, kind)
    assert any(named in finding.sentence and finding.fix for finding in commit.untracked)
    finding = verdict.findings[0]
    assert (verdict.kind, finding.component, finding.channel) == (VerdictKind.BROKEN, UNREGISTERED, channel)
    assert named in finding.sentence
    assert "extra" in finding.fix
    assert report.stop_reason is StopReason.FAILED


@pytest.mark.parametrize(
    ("kind", "component", "named"),
    [
        ("after_step_that_does_nothing", "extra.average", "extra.average"),
        ("momentum_of_the_norm_lost", "setup.hyperparameters", "momentum"),
    ],
)
def test_what_a_step_leaves_behind_is_compared_after_the_last_replayed_step(
    fork_server, make_spec, open_log, tmp_path, kind, component, named
):
    _, _, verdict = resumed(fork_server, make_spec, open_log, tmp_path, kind)
    finding = verdict.findings[0]
    assert (verdict.kind, finding.component, finding.channel) == (VerdictKind.BROKEN, component, "state")
    assert finding.step == 18
    assert named in finding.sentence


def test_values_that_the_rehearsal_had_otherwise_are_noted_at_the_next_resume(
    fork_server, make_spec, open_log, tmp_path
):
    config = {"kind": "unnamed_values_of_the_process", "marker": str(tmp_path / "marker"), "pause_seconds": 0.02}
    spec = make_spec(
        recipe="tests.recipes.outside:build",
        config=config,
        steps=100_000,
        checkpoints={"every_seconds": 1},
        continuity={"rehearsal": "stop"},
    )
    runlog = open_log(spec)

    def kill_after(condition):
        def observer(pid, log, plan):
            if not condition(read_history(log)):
                return False
            os.kill(pid, signal.SIGSTOP)  # So that it commits nothing between the look and the kill.
            is_met = condition(read_history(log.reload()))
            os.kill(pid, signal.SIGKILL if is_met else signal.SIGCONT)
            return is_met

        return observer

    # A checkpoint without rows would be resumed without a replay.
    rehearsed = kill_after(lambda history: history.drills and history.newest.rows)
    fork_server.run_attempt(runlog, spec, observer=rehearsed, limit_seconds=150)
    history = read_history(runlog.reload())
    assert [drill.verdict.kind for drill in history.drills] == [VerdictKind.EXACT]
    assert "setup.hyperparameters loss.delay" in history.process_values
    judged = kill_after(lambda history: history.attempts[-1].verdict is not None and len(history.attempts) == 2)
    fork_server.run_attempt(runlog, spec, observer=judged, limit_seconds=150)
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert verdict.kind is VerdictKind.EXACT, verdict.sentence


@pytest.mark.parametrize("kind", ["values_of_the_process", "registered_dict_and_generator", "buffers_left_out"])
def test_sound_recipes_that_look_suspicious_are_exact(fork_server, make_spec, open_log, tmp_path, kind):
    _, _, verdict = resumed(fork_server, make_spec, open_log, tmp_path, kind)
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8), verdict.sentence
