"""Ranks that wait in a call that never returns, as NCCL's do: another thread sees why, says so, and ends them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.launch.assignment import ExitCode
from segue.records import StopReason
from segue.runlog.entries import ClaimEntry, ReportEntry
from segue.runlog.history import read_history

GRACE_SECONDS = 2.0


@pytest.fixture
def end(ranks_fork_server, make_spec, open_log):
    """Runs one attempt of three ranks, of which one ends so; returns its report, the log and the group."""

    def make(rank, how, **fields):
        config = {"rank": rank, "how": how} | fields.pop("config", {})
        common = {"steps": 30, "checkpoints": {"every_steps": 10}, "grace_seconds": GRACE_SECONDS}
        spec = make_spec(recipe="tests.recipes.ranked:unanswered", config=config, **common | fields)
        runlog, groups = open_log(spec), []

        def observer(group, log, plan):
            groups.append(group)
            return True

        report = ranks_fork_server.run_attempt(runlog, spec, ranks=3, observer=observer)
        return report, runlog, groups[0]

    return make


def entries(runlog, kind):
    return [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, kind)]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_a_rank_that_raises_and_stays_alive_is_named_and_every_process_ends_within_bounds(end, rank):
    report, runlog, group = end(rank, "raise")
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == ("ArithmeticError on rank 1" if rank else "ArithmeticError")
    assert report.failure.message == "told to raise here"
    assert "ranked.py" in report.failure.traceback
    assert group.exit_codes == dict.fromkeys(range(3), ExitCode.FAILED)
    (entry,), (claim,) = entries(runlog, ReportEntry), entries(runlog, ClaimEntry)
    assert entry.report == report
    assert entry.written_at - claim.written_at < timedelta(seconds=GRACE_SECONDS + 60)
    assert read_history(runlog).committed_step == 10


@pytest.mark.matrix
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_named_although_the_others_never_come_to_a_collective(end, rank):
    report, runlog, _ = end(rank, "die")
    assert [entry.report for entry in entries(runlog, ReportEntry)] == [report]
    assert report.stop_reason is StopReason.LOST
    assert f"rank {rank} was lost" in report.note
    assert report.notice is None
    assert read_history(runlog).committed_step == 10


def test_the_first_step_of_one_rank_may_take_longer_than_the_others_wait_later(end):
    liveness = {"heartbeat_seconds": 0.05, "rank_seconds": 2.0, "first_step_seconds": 120.0}
    report, _, _ = end(1, "late", config={"seconds": 4.0}, liveness=liveness)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 30), report
