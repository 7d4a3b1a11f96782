"""A step with anomalous numbers is never kept, and does not end a run that can continue."""

from __future__ import annotations

import os
import signal

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.records import Capacity, SegmentPlan, Skip, StopReason, VerdictKind
from segue.reports.tables import anomaly_facts, segment_rows
from segue.runlog.history import read_history
from segue.spec import RunSpec
from tests.recipes.poisoned import sample_at_step
from tests.support.final_states import state_at_end

FAILED, FINISHED = StopReason.FAILED, StopReason.FINISHED
BAD_STEP = 13
BAD_BATCH = Skip(samples_seen=12 * 32, sample_count=32)
SPIKES = {"spike_window_steps": 8, "spike_factor": 10.0}


@pytest.fixture(scope="module")
def bad_sample():
    return sample_at_step(BAD_STEP)


@pytest.fixture
def begin(make_spec, open_log, bad_sample):
    """A run of 30 steps, committed every ten, in which the batch of step 13 has an anomaly; and its log."""

    def make(goes_bad, *, config=None, **fields):
        config = {"goes_bad": goes_bad, "sample": bad_sample} | (config or {})
        common = {"recipe": "tests.recipes.poisoned:build", "steps": 30, "checkpoints": {"every_steps": 10}}
        spec = make_spec(**common | fields, config=config)
        return spec, open_log(spec)

    return make


def final_state(runlog):
    return state_at_end(read_history(runlog))


def run_with(fork_server, spec, runlog, skips):
    """One attempt that skips the batches given by the test, whatever the log holds."""
    plan = decide_next(runlog, spec, clock=SystemClock()).plan.model_copy(update={"skips": skips})
    fork_server.start(spec, plan).join(60)
    return read_history(runlog).report_of(plan.segment, plan.attempt)


@pytest.fixture(scope="module")
def state_without_the_batch(fork_server, tmp_path_factory, bad_sample):
    """The final state of a run that was configured from its start to skip the bad batch."""
    fields = {"run_id": "told", "recipe": "tests.recipes.poisoned:build", "steps": 30, "threads": 1}
    config = {"goes_bad": "never", "sample": bad_sample}
    fields |= {"continuity": {"rehearsal": "off"}}
    spec = RunSpec.parse(fields | {"store": {"url": str(tmp_path_factory.mktemp("told"))}, "config": config})
    runlog = open_run(spec, clock=SystemClock())
    assert run_with(fork_server, spec, runlog, (BAD_BATCH,)).stop_reason is FINISHED
    return final_state(runlog)


# A save in the very step before is still being copied when the bad one begins, if staging is overlapped.
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("every_steps", "staging", "kept", "replayed"), [(10, "blocking", 10, 2), (12, "overlapped", 12, 0)]
)
def test_an_anomaly_that_repeats_in_one_batch_ends_the_run_at_the_checkpoint_before_it(
    fork_server, begin, bad_sample, every_steps, staging, kept, replayed
):
    spec, runlog = begin("loss", checkpoints={"every_steps": every_steps, "staging": staging})
    reports = [fork_server.run_attempt(runlog, spec) for _ in range(2)]
    for report in reports:
        assert (report.stop_reason, report.to_step, report.failure.type) == (FAILED, 12, "PoisonedStepError")
        anomaly = report.anomaly
        assert (anomaly.step, anomaly.channel, anomaly.batch) == (BAD_STEP, "loss", BAD_BATCH)
        assert anomaly.value != anomaly.value
        assert len(anomaly.sample_ids) == 32
        assert bad_sample in anomaly.sample_ids
    assert reports[0].checkpoint.step == kept
    history = read_history(runlog)
    assert history.committed_step == kept
    assert [row.step for row in history.newest.rows] == list(range(kept + 1, BAD_STEP))
    verdict = history.attempts[1].verdict
    assert verdict.kind is (VerdictKind.EXACT if replayed else VerdictKind.UNVERIFIED)
    assert verdict.rows_compared == replayed
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.action == "failed"
    assert "at step 13, samples 384 to 415 of the order; the same batch had bad numbers again" in decision.reason
    assert 'anomalies.non_finite = "skip"' in decision.reason


@pytest.mark.matrix
def test_a_step_with_an_anomaly_that_does_not_repeat_is_done_again_and_leaves_no_trace(fork_server, begin, tmp_path):
    spec, runlog = begin("loss", config={"marker": str(tmp_path / "went-bad")})
    reports = fork_server.run_to_the_end(runlog, spec)
    assert [report.stop_reason for report in reports] == [FAILED, FINISHED]
    assert read_history(runlog).attempts[1].verdict.kind is VerdictKind.EXACT
    calm, undisturbed = begin("never", run_id="calm")
    fork_server.run_to_the_end(undisturbed, calm)
    assert final_state(runlog) == final_state(undisturbed)


@pytest.mark.matrix
def test_a_run_that_skips_a_batch_equals_one_that_never_had_it_whatever_is_killed_then(
    fork_server, begin, state_without_the_batch
):
    spec, runlog = begin("loss", anomalies={"non_finite": "skip"}, config={"pause_seconds": 0.03})
    for _ in range(2):
        assert fork_server.run_attempt(runlog, spec).anomaly.batch == BAD_BATCH

    def kill_once_it_has_committed_past_the_batch(pid, log, plan):
        if not plan.skips or read_history(log).committed_step < 20:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    killed = fork_server.run_attempt(runlog, spec, observer=kill_once_it_has_committed_past_the_batch)
    assert killed.stop_reason is StopReason.LOST
    last = fork_server.run_attempt(runlog, spec)
    history = read_history(runlog)
    assert (last.stop_reason, last.from_step) == (FINISHED, 20)
    assert history.newest.manifest.samples_seen == (30 + 1) * 32
    assert history.attempts[2].verdict.kind is VerdictKind.EXACT
    assert history.attempts[3].verdict.kind is not VerdictKind.BROKEN
    assert [entry.plan.skips for entry in history.decisions] == [(), (), (BAD_BATCH,), (BAD_BATCH,)]
    assert final_state(runlog) == state_without_the_batch
    facts = anomaly_facts(history)
    assert facts["rollbacks"].startswith("2, last: loss was nan at step 13")
    assert facts["left_out"] == "samples 384 to 415 of the order"
    shown = [row["stop_reason"] for row in segment_rows(history)]
    assert shown == ["failed, loss nan", "failed, loss nan", "lost", "finished"]


@pytest.mark.matrix
def test_a_batch_is_skipped_although_data_workers_prefetch(fork_server, begin, state_without_the_batch):
    spec, runlog = begin("loss", anomalies={"non_finite": "skip"}, config={"workers": 2})
    reports = fork_server.run_to_the_end(runlog, spec)
    assert [report.stop_reason for report in reports] == [FAILED, FAILED, FINISHED]
    assert final_state(runlog) == state_without_the_batch


def test_a_resume_after_a_skip_is_proven_exact(fork_server, begin):
    spec, runlog = begin("loss", anomalies={"non_finite": "skip"}, config={"notice_at_step": 14})
    reports = fork_server.run_to_the_end(runlog, spec)
    assert [report.stop_reason for report in reports] == [FAILED, FAILED, StopReason.NOTICE, FINISHED]
    verdict = read_history(runlog).attempts[3].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)


@pytest.mark.matrix
def test_an_attempt_that_skips_a_batch_need_not_replay_the_rows_of_one_that_trained_on_it(fork_server, begin):
    spec, runlog = begin("never", config={"raise_at_step": 20})
    assert fork_server.run_attempt(runlog, spec).stop_reason is FAILED
    assert [row.step for row in read_history(runlog).newest.rows] == list(range(11, 19))
    spec = spec.model_copy(update={"config": spec.config | {"raise_at_step": None}})
    assert run_with(fork_server, spec, runlog, (BAD_BATCH,)).stop_reason is FINISHED
    verdict = read_history(runlog).attempts[1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 2)


def test_a_replay_with_an_anomaly_where_the_run_had_none_is_a_broken_resume(fork_server, begin, tmp_path):
    spec, runlog = begin("loss", config={"fine_until_it_raised": str(tmp_path / "raised")})
    first, second = (fork_server.run_attempt(runlog, spec) for _ in range(2))
    assert (first.failure.type, second.failure.type) == ("ArithmeticError", "BrokenResumeError")
    assert second.anomaly is None
    finding = read_history(runlog).attempts[1].verdict.findings[0]
    assert (finding.channel, finding.step) == ("loss", BAD_STEP)
    # The batch is not skipped: the recovery of broken resumes decides.
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert (decision.plan.parent.step, decision.plan.skips) == (10, ())
    assert decision.reason.startswith("second resume from step 10, because the first was broken")


def test_an_anomaly_in_a_step_that_only_yields_a_witness_row_ends_nothing(fork_server, begin):
    spec, runlog = begin("loss", config={"notice_at_step": 11})
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.checkpoint.step, report.anomaly) == (StopReason.NOTICE, 11, None)
    assert [row.step for row in read_history(runlog).newest.rows] == [12]
    assert fork_server.run_attempt(runlog, spec).anomaly.step == BAD_STEP


def test_a_gradient_that_is_not_finite_is_an_anomaly_unless_a_scaler_handles_it(fork_server, begin):
    spec, runlog = begin("gradient")
    assert fork_server.run_attempt(runlog, spec).anomaly.channel == "grad_norm"
    scaled, runlog = begin("gradient", run_id="scaled", config={"scaler": True})
    report = fork_server.run_attempt(runlog, scaled)
    assert (report.stop_reason, report.anomaly) == (FINISHED, None)


@pytest.mark.matrix
def test_after_a_rollback_the_first_batch_with_bad_gradients_is_named(fork_server, begin):
    spec, runlog = begin("gradient", config={"unclipped": True}, checkpoints={"every_steps": 20})
    first, *others = (fork_server.run_attempt(runlog, spec).anomaly for _ in range(3))
    assert (first.step, first.channel) == (BAD_STEP + 1, "loss")  # Norms were not measured at the step before.
    for anomaly in others:
        assert (anomaly.step, anomaly.channel, anomaly.batch) == (BAD_STEP, "grad_norm", BAD_BATCH)
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.action == "failed"
    assert "at step 13, samples 384 to 415 of the order; the same batch had bad numbers again" in decision.reason


@pytest.mark.matrix
def test_an_attempt_that_has_just_resumed_finds_the_spike_again_and_its_batch_is_then_skipped(
    fork_server, begin, state_without_the_batch
):
    spec, runlog = begin("spike", anomalies={"spikes": "skip", **SPIKES})
    reports = fork_server.run_to_the_end(runlog, spec)
    assert [report.stop_reason for report in reports] == [FAILED, FAILED, FINISHED]
    first, second = (report.anomaly for report in reports[:2])
    assert first == second
    assert (first.kind, first.step, first.batch) == ("spike", BAD_STEP, BAD_BATCH)
    assert first.value > first.limit > 0
    state, told = final_state(runlog), state_without_the_batch
    assert {name for name in state if state[name] != told[name]} == {"progress"}  # Its recent losses.


@pytest.mark.matrix
@pytest.mark.parametrize(("goes_bad", "anomalies"), [("spike", {}), ("loss", {"non_finite": "off"})])
def test_an_anomaly_that_is_not_watched_for_ends_nothing(fork_server, begin, goes_bad, anomalies):
    spec, runlog = begin(goes_bad, anomalies=anomalies)
    assert fork_server.run_attempt(runlog, spec).stop_reason is FINISHED


@pytest.mark.matrix
def test_watching_for_spikes_may_begin_and_end_during_a_run(fork_server, begin):
    spec, runlog = begin("never", config={"notice_at_step": 6})
    fork_server.run_attempt(runlog, spec)
    watching = {"anomalies": spec.anomalies.model_copy(update={"spikes": "rollback", **SPIKES})}
    later = spec.model_copy(update=watching | {"config": spec.config | {"notice_at_step": 16}})
    fork_server.run_attempt(runlog, later)
    fork_server.run_attempt(runlog, spec)
    kinds = [attempt.verdict.kind for attempt in read_history(runlog).attempts if attempt.verdict]
    assert kinds == [VerdictKind.EXACT, VerdictKind.EXACT]
    assert read_history(runlog).committed_step == 30


def test_the_skips_of_a_plan_name_the_batches_that_are_left_out():
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-", skips=(BAD_BATCH,))
    assert SegmentPlan.model_validate_json(plan.model_dump_json()) == plan
