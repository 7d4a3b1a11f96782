"""A resume that loses something is caught before the next commit, and what was lost is named."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history

# fault, component named, channel, seen before the first step
FAULTS = [
    ("optimizer_not_restored", "optimizer", "digest", True),
    ("data_rows_changed", "setup.data", "setup", True),
    ("unregistered_counter", "unregistered state", "loss", False),
    ("weight_decay_changed", "optimizer", "param_norm", False),
    *(
        pytest.param(*fault, marks=pytest.mark.matrix)
        for fault in (
            ("scheduler_not_restored", "scheduler", "digest", True),
            ("batch_norm_not_restored", "model", "digest", True),
            ("extra_not_restored", "extra.forgetful", "digest", True),
            ("dropout_changed", "setup.model", "setup", True),
        )
    ),
]


def resumed(fork_server, make_spec, open_log, tmp_path, fault):
    spec = make_spec(
        recipe="tests.recipes.faulty:build",
        config={"fault": fault, "marker": str(tmp_path / "built-before"), "raise_first_at": 26, "pause_seconds": 0.02},
        steps=60,
    )
    runlog = open_log(spec)
    first = fork_server.run_attempt(runlog, spec)
    assert first.stop_reason is StopReason.FAILED
    report = fork_server.run_attempt(runlog, spec)
    return spec, runlog, report


@pytest.mark.matrix
@pytest.mark.parametrize(("fault", "component", "channel", "before_first_step"), FAULTS)
def test_a_faulty_resume_is_broken_and_names_what_was_lost(
    fork_server, make_spec, open_log, tmp_path, fault, component, channel, before_first_step
):
    spec, runlog, report = resumed(fork_server, make_spec, open_log, tmp_path, fault)
    history = read_history(runlog)
    verdict = history.attempts[-1].verdict
    assert verdict.kind is VerdictKind.BROKEN
    assert (verdict.findings[0].component, verdict.findings[0].channel) == (component, channel)
    assert (verdict.findings[0].step is None) is before_first_step
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == "BrokenResumeError"
    # Nothing was committed after it, and the run stops: at once, or when the recovery is done.
    for _ in range(0 if channel == "setup" else 2):
        fork_server.run_attempt(runlog, spec)
    history = read_history(runlog)
    assert history.committed_step == 20
    parents = [entry.parent.step for entry in history.resumes]
    assert parents == ([20] if channel == "setup" else [20, 20, 10])
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.action == "broken"
    assert decision.reason == history.broken_resumes[-1].verdict.findings[0].sentence


@pytest.mark.matrix
def test_the_same_resume_without_a_fault_is_exact(fork_server, make_spec, open_log, tmp_path):
    _, runlog, report = resumed(fork_server, make_spec, open_log, tmp_path, "none")
    assert read_history(runlog).attempts[-1].verdict.kind is VerdictKind.EXACT
    assert report.stop_reason is StopReason.FINISHED


@pytest.mark.matrix
def test_after_a_broken_resume_was_fixed_the_same_run_goes_on(fork_server, make_spec, open_log, tmp_path):
    spec, runlog, _ = resumed(fork_server, make_spec, open_log, tmp_path, "optimizer_not_restored")
    for _ in range(2):
        fork_server.run_attempt(runlog, spec)
    assert decide_next(runlog, spec, clock=SystemClock()).action == "broken"
    fixed = spec.model_copy(update={"config": spec.config | {"fault": "none"}})
    reports = fork_server.run_to_the_end(runlog, fixed)
    assert reports[-1].stop_reason is StopReason.FINISHED
    assert read_history(runlog).attempts[-1].verdict.kind is VerdictKind.EXACT


@pytest.mark.matrix
def test_another_thread_count_is_equivalent_within_tolerances(fork_server, make_spec, open_log):
    spec = make_spec(steps=60, config={"raise_at_step": 26, "width": 256, "pause_seconds": 0.02}, threads=1)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    other = spec.model_copy(update={"threads": 2, "config": {"width": 256}})
    fork_server.run_attempt(runlog, other)
    verdict = read_history(runlog).attempts[-1].verdict
    assert verdict.kind is VerdictKind.EQUIVALENT
    assert verdict.environment_changes == ("threads",)
    assert verdict.rows_compared >= 5
