"""How an attempt of several ranks ends: one report, and the name of the rank that caused it."""

from __future__ import annotations

import gc
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from segue.launch.assignment import ExitCode
from segue.records import Capacity, SegmentPlan, StopReason, VerdictKind
from segue.runlog.entries import ClaimEntry, CommitEntry, ReportEntry
from segue.runlog.history import read_history
from segue.trainer.ranks.collectives import TorchRanks

EVEN = {"recipe": "tests.recipes.ranked:even", "steps": 30, "checkpoints": {"every_steps": 10}}


class Watching:
    """Observes the group of an attempt, and acts on it once."""

    def __init__(self, action=lambda group: None):
        self._action = action
        self.group = None

    def __call__(self, group, log, plan):
        self.group = group
        self._action(group)
        return True


def wait_until(holds, limit_seconds=60):
    give_up_at = time.monotonic() + limit_seconds
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def entries(runlog, kind):
    return [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, kind)]


@pytest.fixture
def end(ranks_fork_server, make_spec, open_log):
    """Runs one attempt in which a rank fails; returns its report, the log, the group and the spec."""

    def make(at, *, ranks=3, **fields):
        spec = make_spec(**EVEN | fields | {"config": {"at": at} | fields.get("config", {})})
        runlog, seen = open_log(spec), Watching()
        report = ranks_fork_server.run_attempt(runlog, spec, ranks=ranks, observer=seen)
        return report, runlog, seen.group, spec

    return make


@pytest.mark.matrix
def test_a_rank_that_raises_ends_the_attempt_with_its_number_and_traceback(end):
    report, runlog, group, _ = end([1, 15, "raise"])
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == "ArithmeticError on rank 1"
    assert report.failure.message == "told to raise here"
    assert "ranked.py" in report.failure.traceback
    assert group.exit_codes == dict.fromkeys(range(3), ExitCode.FAILED)
    assert read_history(runlog).committed_step == 10


@pytest.mark.matrix
def test_a_leader_that_raises_reports_as_if_it_were_alone(end):
    report, _, _, _ = end([0, 15, "raise"])
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "ArithmeticError")
    assert "ranked.py" in report.failure.traceback


def test_ranks_that_all_raise_leave_one_report(end):
    report, runlog, _, _ = end(["all", 15, "raise"])
    assert [entry.report for entry in entries(runlog, ReportEntry)] == [report]
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type.startswith("ArithmeticError")


@pytest.mark.matrix
def test_each_rank_ends_its_threads_and_calls_its_exit_functions(end, tmp_path):
    report, *_ = end(
        [0, 15, "notice"], ranks=2, recipe="tests.recipes.spread:with_exit_function", config={"left": str(tmp_path)}
    )
    assert report.stop_reason is StopReason.FINISHED, report.failure
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {f"{name}-{rank}" for name in ("thread", "exit-function") for rank in range(2)}


@pytest.fixture
def group_of_one(monkeypatch):
    """A process group of this process alone."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    for name, value in (names | {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    return TorchRanks(torch.device("cpu"), wait_seconds=60)


@pytest.mark.matrix
def test_a_group_lives_as_long_as_its_process_and_is_not_destroyed_with_the_last_model_that_uses_it(group_of_one):
    give_up_at = time.monotonic() + 60
    while not (before := gloo_threads()):  # A thread that is just starting has its name a little later.
        assert time.monotonic() < give_up_at
    group_of_one.close()
    gc.collect()
    assert set(before) <= set(gloo_threads()), "one that is just starting may have its name only now"


def gloo_threads():
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # Another thread may end meanwhile.
            if "gloo" in (thread / "comm").read_text():
                found.append(thread.name)
    return sorted(found)


@pytest.mark.matrix
def test_a_rank_whose_recipe_cannot_be_built_is_named(end):
    report, runlog, group, _ = end([2, 0, "raise"])
    assert [entry.report for entry in entries(runlog, ReportEntry)] == [report]
    assert (report.stop_reason, report.to_step) == (StopReason.FAILED, 0)
    assert report.failure.type == "ArithmeticError on rank 2"
    assert "ranked.py" in report.failure.traceback
    assert group.exit_codes == dict.fromkeys(range(3), ExitCode.FAILED)


@pytest.mark.parametrize(
    ("hung", "step", "committed"),
    [
        pytest.param(1, 12, 10, marks=pytest.mark.matrix),
        *(pytest.param(0, *case, marks=pytest.mark.soak) for case in ((12, 10), (0, 0))),
    ],
)
def test_a_rank_that_hangs_is_named_by_another_rank_and_killed(end, hung, step, committed):
    report, runlog, group, _ = end([hung, step, "hang"], liveness={"heartbeat_seconds": 0.05, "rank_seconds": 3})
    assert (report.stop_reason, report.failure.type) == (StopReason.HUNG, "HungRankError")
    assert f"rank {hung} hung" in report.failure.message
    (entry,), (claim,) = entries(runlog, ReportEntry), entries(runlog, ClaimEntry)
    assert entry.report == report
    assert entry.written_at - claim.written_at < timedelta(seconds=3 + 15)
    assert group.processes[hung].exitcode == -signal.SIGKILL
    assert hung not in group.exit_codes
    assert read_history(runlog).committed_step == committed


@pytest.fixture
def die(ranks_fork_server, make_spec, open_log):
    """Stops a run at step 10, kills a rank at step 20 of the next attempt, and resumes; returns both reports."""

    def make(rank, **config):
        spec = make_spec(**EVEN | {"config": config, "checkpoints": {"every_steps": 1000}})
        runlog, seen = open_log(spec), Watching()
        reports = [
            ranks_fork_server.run_attempt(
                runlog, spec.model_copy(update={"config": config | {"at": at}}), ranks=3, observer=seen
            )
            for at in ([1, 10, "notice"], [rank, 20, "die"], None)
        ]
        assert len(entries(runlog, ReportEntry)) == 3
        verdicts = [attempt.verdict.kind for attempt in read_history(runlog).attempts[1:]]
        assert verdicts == [VerdictKind.EXACT] * 2
        return reports[1:]

    return make


@pytest.mark.matrix
def test_a_rank_that_dies_is_named_and_the_run_resumes_from_its_last_commit(die):
    lost, last = die(2, sharded=True)
    assert (lost.stop_reason, lost.lost_steps) == (StopReason.LOST, 9)
    assert "rank 2 was lost" in lost.note
    assert lost.notice is None  # The signal by which torchrun ends the other ranks is no notice.
    assert (last.stop_reason, last.from_step) == (StopReason.FINISHED, 10)


@pytest.mark.matrix
def test_without_its_leader_an_attempt_is_lost_and_another_rank_reports_it(die):
    lost, last = die(0)
    assert (lost.stop_reason, lost.from_step) == (StopReason.LOST, 10)
    assert "rank 0 was lost" in lost.note
    assert lost.lost_steps == 9
    assert (last.stop_reason, last.from_step) == (StopReason.FINISHED, 10)


@pytest.mark.matrix
def test_no_rank_waits_for_the_shard_of_a_dead_rank(end):
    started = time.monotonic()
    report, runlog, _, _ = end([1, "save", "die"], recipe="tests.recipes.ranked:noisy")
    assert time.monotonic() - started < 20
    assert report.stop_reason is StopReason.LOST
    assert "rank 1 was lost" in report.note
    assert read_history(runlog).checkpoints == ()


def test_a_rank_that_is_gone_before_all_have_joined_delays_the_others_no_longer_than_allowed(
    ranks_fork_server, make_spec, open_log
):
    spec = make_spec(**EVEN, liveness={"heartbeat_seconds": 0.05, "rank_seconds": 3})
    runlog = open_log(spec)
    kill = Watching(lambda group: group.signal(1, signal.SIGKILL))
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=3, observer=kill, limit_seconds=30)
    assert (report.stop_reason, report.to_step) == (StopReason.LOST, 0)
    assert not read_history(runlog).attempts


@pytest.mark.matrix
def test_a_newer_claim_ends_all_ranks_of_the_older_attempt_and_they_commit_nothing_more(
    ranks_fork_server, make_spec, open_log
):
    spec = make_spec(**EVEN | {"steps": 4000, "config": {"pause_seconds": 0.005}})
    runlog = open_log(spec)
    older, newer = (
        SegmentPlan(segment=0, attempt=attempt, capacity=Capacity.SPOT, deployment="-") for attempt in (1, 2)
    )
    zombie = ranks_fork_server.start(spec, older, ranks=2)
    successor = None
    try:
        wait_until(lambda: read_history(runlog).checkpoints)
        successor = ranks_fork_server.start(spec, newer, ranks=2)
        wait_until(lambda: not zombie.is_alive)
        wait_until(
            lambda: any(slot.entry.epoch == 2 for slot in runlog.refresh().slots if isinstance(slot.entry, CommitEntry))
        )
    finally:
        codes = [group.end() for group in (zombie, successor) if group is not None]
    assert codes[0] == ExitCode.FENCED
    slots = runlog.reload().slots
    second_claim = next(slot.number for slot in slots if isinstance(slot.entry, ClaimEntry) and slot.entry.attempt == 2)
    assert all(slot.entry.epoch != 1 for slot in slots if slot.number > second_claim)


@pytest.mark.matrix
def test_a_notice_before_the_ranks_have_started_ends_the_attempt_before_its_first_step(
    ranks_fork_server, make_spec, open_log
):
    spec = make_spec(**EVEN)
    runlog = open_log(spec)
    notice = Watching(lambda group: group.folder.give_notice())
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=3, observer=notice)
    assert (report.stop_reason, report.to_step, report.checkpoint) == (StopReason.NOTICE, 0, None)
    assert notice.group.exit_codes == dict.fromkeys(range(3), ExitCode.NOTICE)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("what", "component", "channel"),
    [("optimizer", "optimizer", "digest"), ("data", "data content", "input_fingerprint"), ("dropout", None, "loss")],
)
def test_a_resume_that_is_broken_on_one_rank_is_broken_for_all_and_names_the_lost_component(
    ranks_fork_server, make_spec, open_log, tmp_path, what, component, channel
):
    config = {"at": [1, 10, "notice"], "forgets": [1, what], "marker": str(tmp_path / "built")}
    fields = {"recipe": "tests.recipes.ranked:forgetful", "config": config, "checkpoints": {"every_steps": 1000}}
    spec = make_spec(steps=30, **fields)
    runlog = open_log(spec)
    for _ in range(2):
        seen = Watching()
        report = ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=seen)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "BrokenResumeError")
    assert seen.group.exit_codes == dict.fromkeys(range(2), ExitCode.BROKEN)
    history = read_history(runlog)
    assert history.committed_step == 10
    verdict = history.attempts[-1].verdict
    assert verdict.kind is VerdictKind.BROKEN
    assert (verdict.findings[0].component, verdict.findings[0].channel) == (
        component or "outside the checkpoint",
        channel,
    )
    assert (len(history.resumes), len(history.reports)) == (1, 2)
