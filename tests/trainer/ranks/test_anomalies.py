"""An anomaly at one of several ranks is found by all of them, and no rank waits for another."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.data.loader import Feed
from segue.launch.assignment import ExitCode
from segue.records import Skip, StopReason, VerdictKind
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from tests.recipes.ranked import even
from tests.support.single_rank import read_all

BAD_STEP, BAD_BATCH = 5, Skip(samples_seen=40, sample_count=10)


@pytest.mark.matrix
def test_all_ranks_stop_at_the_same_step_and_then_leave_out_the_same_batch(ranks_fork_server, make_spec, open_log):
    # The bad sample is in the half of the batch that rank 1 gets.
    sample = int(Feed(even({}).data, recipe="even", seed=0).order.batch(40)[-1])
    fields = {"recipe": "tests.recipes.poisoned:even_with_a_bad_sample", "config": {"sample": sample}, "steps": 9}
    spec = make_spec(**fields, checkpoints={"every_steps": 3}, anomalies={"non_finite": "skip"})
    runlog, groups = open_log(spec), []
    reports = [
        ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=lambda group, *_: groups.append(group) or True)
        for _ in range(3)
    ]
    assert [report.stop_reason for report in reports] == [StopReason.FAILED, StopReason.FAILED, StopReason.FINISHED]
    for report, group in zip(reports[:2], groups, strict=False):
        assert (report.anomaly.step, report.anomaly.batch) == (BAD_STEP, BAD_BATCH)
        assert sample in report.anomaly.sample_ids
        assert report.failure.type == "PoisonedStepError"
        assert group.exit_codes == dict.fromkeys(range(2), ExitCode.FAILED)
    assert reports[0].checkpoint.step == reports[1].from_step == 3
    assert len([slot for slot in runlog.reload().slots if isinstance(slot.entry, ReportEntry)]) == 3
    assert [attempt.verdict.kind for attempt in read_history(runlog).attempts[1:]] == [VerdictKind.EXACT] * 2
    assert _tensors(runlog) == _tensors_of_a_run_without_the_batch(
        ranks_fork_server, make_spec(**fields, run_id="told"), open_log
    )


def _tensors_of_a_run_without_the_batch(ranks_fork_server, spec, open_log):
    runlog = open_log(spec)
    plan = decide_next(runlog, spec, clock=SystemClock()).plan.model_copy(update={"skips": (BAD_BATCH,)})
    group = ranks_fork_server.start(spec, plan, ranks=2)
    for process in group.processes:
        process.join(60)
    assert group.end() == ExitCode.FINISHED
    return _tensors(runlog)


def _tensors(runlog):
    return {name: tensor.tolist() for name, tensor in read_all(runlog)[9].items()}
