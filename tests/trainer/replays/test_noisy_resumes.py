"""Recipes that do not compute the same twice: killed, resumed, and judged by what replays in fresh processes show."""

from __future__ import annotations

import os
import signal
import time

import pytest

from segue.clock import SystemClock
from segue.continuity.naming import UNREGISTERED
from segue.controller.steps import decide_next
from segue.records import StopReason, VerdictKind
from segue.reports.run_facts import rehearsal_text
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

RECIPE = "tests.continuity.noise.recipe:build"


@pytest.fixture
def noisy(make_spec):
    def make(kind, **fields):
        config = fields.pop("config", {})
        checkpoints = {"every_steps": 40, "every_seconds": None}
        common = {"recipe": RECIPE, "steps": 100, "threads": None, "checkpoints": checkpoints}
        return make_spec(**common | {"config": {"kind": kind, **config}, "continuity": {"rehearsal": "stop"}} | fields)

    return make


def resumed(fork_server, runlog, spec, *, environment=None):
    """The history of a run that was killed once it had a witness, and resumed; and how its second attempt ended."""
    lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    assert lost.stop_reason is StopReason.LOST, lost.failure
    report = fork_server.run_attempt(runlog, spec, environment=environment)
    history = read_history(runlog.reload())
    assert report.failure is None, report.failure.message
    assert report.stop_reason is StopReason.FINISHED
    return history, history.attempts[1].verdict


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "config"), [("index_put", {}), ("perturbed", {"eps": 1e-6})])
def test_a_resume_within_the_noise_of_kernels_is_equivalent_and_says_so_with_the_fix(
    fork_server, noisy, open_log, kind, config
):
    spec = noisy(kind, config=config)
    _, verdict = resumed(fork_server, open_log(spec), spec)
    if kind == "perturbed" or verdict.kind is not VerdictKind.EXACT:  # Threads may happen to add in the same order.
        assert verdict.kind is VerdictKind.EQUIVALENT, verdict.sentence
        assert 0 < max(verdict.noise.values()) < 1e-2
        assert "within the noise of kernels that are not deterministic" in verdict.sentence
    assert decide_next(open_log(spec), spec, clock=SystemClock()).action == "finished"


@pytest.mark.matrix
def test_where_rehearsals_are_off_the_second_attempt_from_a_checkpoint_knows_the_noise(fork_server, noisy, open_log):
    spec = noisy("perturbed", config={"eps": 1e-6}, continuity={"rehearsal": "off"})
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    first = fork_server.run_attempt(runlog, spec)
    assert first.failure.type == "BrokenResumeError", "one replay proves nothing about kernels"
    second = fork_server.run_attempt(runlog, spec)
    assert second.stop_reason is StopReason.FINISHED, second.failure
    verdict = read_history(runlog.reload()).attempts[2].verdict
    assert verdict.kind is VerdictKind.EQUIVALENT, verdict.sentence
    assert 0 < max(verdict.noise.values()) < 1e-2


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "channel"),
    [("unseeded_dropout", "loss"), ("unseeded_batch", "input_fingerprint"), ("wall_time", "input_fingerprint")],
)
def test_a_recipe_that_draws_unseeded_or_reads_the_time_proves_nothing_and_is_not_broken(
    fork_server, noisy, open_log, kind, channel
):
    spec = noisy(kind)
    _, verdict = resumed(fork_server, open_log(spec), spec)
    *carried, finding = verdict.findings  # A generator of its own is also named as what no checkpoint holds.
    assert [each.component for each in carried] == ([UNREGISTERED] if kind != "wall_time" else [])
    assert (verdict.kind, finding.component, finding.channel) == (VerdictKind.UNVERIFIED, "recipe", channel)
    assert "not reproducible" in finding.sentence
    assert "seed" in finding.fix
    assert decide_next(open_log(spec), spec, clock=SystemClock()).action == "finished"


@pytest.mark.soak
@pytest.mark.matrix
def test_a_trainer_that_waits_for_replays_longer_than_a_step_may_take_is_not_hung(fork_server, noisy, open_log):
    limits = {"heartbeat_seconds": 0.05, "hang_seconds": 5, "first_step_seconds": 5}
    spec = noisy("perturbed", config={"eps": 1e-6}, liveness=limits)
    runlog = open_log(spec)
    lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    assert lost.stop_reason is StopReason.LOST, lost.failure
    began = time.monotonic()
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FINISHED, report.failure
    assert time.monotonic() - began > 5, "four fresh processes import torch one after the other"


@pytest.mark.soak
@pytest.mark.matrix
def test_a_notice_during_the_replay_leaves_a_noisy_resume_to_the_next_attempt(fork_server, noisy, open_log):
    spec = noisy("perturbed", config={"eps": 1e-6}, grace_seconds=60)
    runlog = open_log(spec)
    lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    assert lost.stop_reason is StopReason.LOST, lost.failure

    def gives_notice(pid, log, plan):
        if read_history(log).attempt_of(plan.segment, plan.attempt) is None:
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    noticed = fork_server.run_attempt(runlog, spec, observer=gives_notice)
    assert (noticed.stop_reason, noticed.failure) == (StopReason.NOTICE, None)
    undecided = read_history(runlog.reload()).attempts[1]
    assert (undecided.verdict, undecided.commits) == (None, ()), "nothing is committed without a verdict"
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FINISHED, report.failure
    assert read_history(runlog.reload()).attempts[2].verdict.kind is VerdictKind.EQUIVALENT


@pytest.mark.matrix
def test_another_number_of_threads_set_in_build_is_another_environment(fork_server, noisy, open_log):
    spec = noisy("own_threads")
    _, verdict = resumed(fork_server, open_log(spec), spec, environment={"TEST_THREADS": "1"})
    assert (verdict.kind, verdict.environment_changes) == (VerdictKind.EQUIVALENT, ("threads",))


@pytest.mark.matrix
def test_deterministic_kernels_make_the_same_recipe_exact(fork_server, noisy, open_log):
    spec = noisy("index_put", deterministic=True)
    history, verdict = resumed(fork_server, open_log(spec), spec)
    assert (verdict.kind, verdict.noise) == (VerdictKind.EXACT, {}), verdict.sentence
    assert history.newest.manifest.environment.deterministic


@pytest.mark.matrix
def test_an_operation_without_a_deterministic_kernel_is_named_with_its_line_and_the_fix(fork_server, noisy, open_log):
    spec = noisy("without_kernel", deterministic=True)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "NonDeterministicOperationError")
    assert "recipe.py" in report.failure.message
    assert "put_" in report.failure.message
    assert "Fix: replace the operation, or remove that setting" in report.failure.message


@pytest.mark.matrix
def test_a_run_that_reaches_its_goal_first_waits_for_the_rehearsal_and_does_not_finish_where_it_is_broken(
    fork_server, make_spec, open_log, tmp_path
):
    spec = make_spec(
        recipe="tests.recipes.faulty:build",
        config={"fault": "unregistered_counter", "marker": str(tmp_path / "built")},
        steps=120,
        checkpoints={"every_steps": 20, "every_seconds": None},
        continuity={"rehearsal": "stop"},
    )
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    history = read_history(runlog.reload())
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "RehearsalError")
    assert not history.is_finished(spec)
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.action == "broken"
    assert rehearsal_text(spec, history).startswith("broken: loss.calls (closure variable): changed")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "is_change"), [pytest.param("drawn_setting", False, marks=pytest.mark.soak), ("kept_setting", True)]
)
def test_a_setting_that_each_build_has_otherwise_is_no_change_of_the_run(
    fork_server, noisy, open_log, tmp_path, name, is_change
):
    moved = tmp_path / "moved"
    spec = noisy(name, config={"moved": str(moved)})
    runlog = open_log(spec)
    lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    assert lost.stop_reason is StopReason.LOST, lost.failure
    moved.touch()
    report = fork_server.run_attempt(runlog, spec)
    assert (report.failure is not None) is is_change
    if report.failure is not None:
        assert (report.failure.type, "loss.margin was 1.0, now 2.0" in report.failure.message) == (
            "BrokenResumeError",
            True,
        )
    else:
        assert read_history(runlog.reload()).attempts[1].verdict.kind is VerdictKind.EXACT
