"""Ranks that wait in a call that never returns, as NCCL's do: another thread sees why, says so, and ends them."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError

from segue.clock import SystemClock
from segue.errors import RankLostError
from segue.launch.assignment import ExitCode
from segue.process import ProcessRef, this_machine
from segue.records import StopReason
from segue.runlog.entries import ClaimEntry, ReportEntry
from segue.runlog.history import read_history
from segue.trainer.ranks.rank_failures import RankFailures

GRACE_SECONDS = 2.0
KEPT = (0, 10)
"""What may be committed: on a busy machine the leader may end before the commit of step 10 is made."""


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


@pytest.mark.matrix
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.soak)])
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
    assert read_history(runlog).committed_step in KEPT


@pytest.mark.matrix
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_rank_that_dies_is_named_although_the_others_never_come_to_a_collective(end, rank):
    report, runlog, _ = end(rank, "die")
    assert [entry.report for entry in entries(runlog, ReportEntry)] == [report]
    assert report.stop_reason is StopReason.LOST
    assert f"rank {rank} was lost" in report.note
    assert report.notice is None
    assert read_history(runlog).committed_step in KEPT


@pytest.mark.matrix
def test_the_first_step_of_one_rank_may_take_longer_than_the_others_wait_later(end):
    liveness = {"heartbeat_seconds": 0.05, "rank_seconds": 5.0, "first_step_seconds": 120.0}
    report, _, _ = end(1, "late", config={"seconds": 10.0}, liveness=liveness)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 30), report


class DictNotes(dict):
    """Notes of ranks, in this process."""

    def put(self, key, text):
        self[key] = text

    def count(self, key):
        return len(self)


@pytest.fixture
def failures():
    """What rank 0 knows of rank 1, whose process has ended."""
    notes = DictNotes()
    own = RankFailures(notes, watched=notes, rank=0, count=2, wait_seconds=1.0, clock=SystemClock())
    gone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    notes.put("process/1", f"{ProcessRef.of(gone.pid)}\n{this_machine()}")
    gone.kill()
    gone.wait()
    return own, notes


def test_a_rank_that_left_when_all_was_done_is_not_taken_for_lost(failures):
    own, notes = failures
    assert isinstance(own.ended_elsewhere(), RankLostError)
    notes.put("left/1", "")
    assert own.ended_elsewhere() is None


def test_where_the_shared_notes_are_gone_nothing_is_known_and_the_watchdog_goes_on(failures):
    own, notes = failures
    notes.get = lambda key: (_ for _ in ()).throw(DistStoreError("no answer"))
    assert own.ended_elsewhere() is None
    assert own.take_over() is True


def test_of_ranks_that_are_ended_one_after_the_other_the_first_one_left_reports(failures):
    _, notes = failures
    third = RankFailures(notes, watched=notes, rank=2, count=3, wait_seconds=1.0, clock=SystemClock())
    second = RankFailures(notes, watched=notes, rank=1, count=3, wait_seconds=1.0, clock=SystemClock())
    ending = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    notes["process/0"], notes["process/1"] = f"1 1\n{this_machine()}", f"{ProcessRef.of(ending.pid)}\n{this_machine()}"
    assert second.ended_elsewhere().ranks == third.ended_elsewhere().ranks == (0,)
    assert second.take_over() is True
    ending.kill()
    ending.wait()
    assert third.ended_elsewhere().ranks == (0,)
    assert third.take_over() is False


def test_what_is_raised_after_the_collectives_were_ended_here_is_no_cause(failures):
    own, _ = failures
    own.is_broken_off = True
    with pytest.raises(RankLostError, match="rank 1 was lost"), own.shared():
        raise ValueError("Default process group has not been initialized")


def test_the_training_thread_waits_where_the_watchdog_ends_the_process(failures):
    own, _ = failures
    assert own.take_over() is True
    ended = threading.Event()

    def train():
        try:
            with own.shared():
                raise ValueError("a broken collective")
        finally:
            ended.set()

    threading.Thread(target=train, daemon=True).start()
    assert not ended.wait(0.3)
