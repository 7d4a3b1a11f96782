"""What nothing refers to goes, in the end; what anything may refer to stays, whatever happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment, ExitCode
from segue.notices.board import NoticeBoard
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.entries import CommitEntry
from segue.runlog.history import fold, read_history
from segue.runlog.log import RunLog
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore

ORPHANS = ["step-000000099/rank-0.safetensors", "step-000000099/rank-0.json", "step-000000004/rank-0.safetensors"]
HALF_WRITTEN = ["step-000000098/.staged-0123", "step-000000030/.staged-4567"]


@pytest.fixture
def spec(make_spec):
    """A run that goes on until something ends it."""
    return make_spec(steps=10**6, config={"pause_seconds": 0.002}, checkpoints={"every_steps": 10, "keep": 2})


def kill_after(commits):
    """SIGKILL the trainer once it has committed so often."""

    def observer(pid, log, plan):
        if len(read_history(log).checkpoints) < commits:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    return observer


@pytest.fixture
def killed(fork_server, spec, open_log):
    """The folder of an attempt that was killed after three commits."""
    runlog = open_log(spec)
    assert fork_server.run_attempt(runlog, spec, observer=kill_after(3)).stop_reason is StopReason.LOST
    return folder_of(spec, read_history(runlog).attempts[0])


def folder_of(spec, attempt):
    return Path(spec.store.url) / "tiny" / "attempts" / attempt.claim.attempt_id


def with_goal(spec, *, steps=30):
    """The spec with a goal that is some commits away."""
    return spec.model_copy(update={"steps": history_of(spec).committed_step + steps})


def finish(fork_server, spec):
    fork_server.run_to_the_end(log_of(spec), with_goal(spec))


def leave(folder, names):
    """Files as a writer leaves them that was killed before its commit; returns their paths."""
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")
    return paths


def there(paths):
    return [path.name for path in paths if path.exists()]


def log_of(spec):
    return RunLog(open_store(spec.store), spec.run_id).reload()


def history_of(spec):
    return read_history(log_of(spec))


def assert_every_usable_checkpoint_reads_back(spec):
    history = history_of(spec)
    assert history.usable
    for checkpoint in history.usable:
        read_checkpoint(open_store(spec.store), run_id="tiny", manifest=checkpoint.manifest)


@pytest.mark.matrix
def test_what_a_killed_attempt_left_behind_goes_after_the_next_ones_first_commit_and_not_before(
    fork_server, killed, spec
):
    left = leave(killed, ORPHANS + HALF_WRITTEN)
    fails_at_once = spec.model_copy(update={"config": {"raise_at_step": 2}})
    report = fork_server.run_attempt(log_of(spec), fails_at_once)
    assert (report.stop_reason, report.checkpoint) == (StopReason.FAILED, None)
    assert len(there(left)) == len(left)
    finish(fork_server, spec)
    assert there(left) == []
    assert_every_usable_checkpoint_reads_back(spec)


@pytest.mark.matrix
def test_bytes_whose_deletion_was_cut_short_go_later(fork_server, spec, open_log):
    runlog = open_log(spec)
    # Slow steps: a busy machine must have time to commit three times before the step that raises.
    fails = spec.model_copy(update={"config": {"raise_at_step": 55, "pause_seconds": 0.05}})
    assert fork_server.run_attempt(runlog, fails).stop_reason is StopReason.FAILED
    pruned = [checkpoint for checkpoint in history_of(spec).checkpoints if checkpoint.is_pruned]
    assert pruned
    run_folder = Path(spec.store.url) / "tiny"
    again = leave(run_folder, [shard.key for checkpoint in pruned for shard in checkpoint.manifest.shards])
    finish(fork_server, spec)
    assert there(again) == []
    assert_every_usable_checkpoint_reads_back(spec)


@pytest.mark.matrix
def test_a_save_that_was_given_up_leaves_nothing_for_ever_though_its_attempt_ended_by_itself(
    fork_server, spec, open_log
):
    """A notice that runs out, or a writer process that was killed: the attempt reports, its half-written file stays."""
    runlog = open_log(spec)
    fails = spec.model_copy(update={"config": spec.config | {"raise_at_step": 25}})
    assert fork_server.run_attempt(runlog, fails).stop_reason is StopReason.FAILED
    left = leave(folder_of(spec, read_history(runlog).attempts[0]), HALF_WRITTEN)
    finish(fork_server, spec)
    assert there(left) == []


@pytest.mark.matrix
def test_a_record_that_cannot_be_read_may_name_anything_so_nothing_is_swept(fork_server, killed, spec):
    slots = RunLog(open_store(spec.store), "tiny").reload().slots
    newest = [slot for slot in slots if isinstance(slot.entry, CommitEntry)][-1]
    record = Path(spec.store.url) / "tiny" / "log" / f"{newest.number:08d}.json"
    record.write_bytes(record.read_bytes()[:-9])
    named = [killed.parents[1] / shard.key for shard in newest.entry.manifest.shards]
    left = leave(killed, ORPHANS)
    finish(fork_server, spec)
    assert [damage.slot for damage in history_of(spec).damage] == [newest.number]
    assert len(there(named)) == 2
    assert len(there(left)) == len(left)


def test_a_quarantined_checkpoint_keeps_its_bytes(fork_server, killed, spec):
    newest = history_of(spec).newest.manifest
    paths = [killed.parents[1] / shard.key for shard in newest.shards]
    data = bytearray(paths[0].read_bytes())
    data[-1] ^= 1
    paths[0].write_bytes(data)
    left = leave(killed, ORPHANS)
    finish(fork_server, spec)
    assert [c.manifest.step for c in history_of(spec).checkpoints if c.quarantined] == [newest.step]
    assert paths[0].read_bytes() == data
    assert len(there(paths)) == 2
    assert there(left) == []


@pytest.mark.matrix
def test_later_attempts_and_strangers_are_left_alone(fork_server, killed, spec):
    attempts = killed.parent
    later = leave(attempts / "seg007-a1-e99", ORPHANS + HALF_WRITTEN)
    strange = leave(attempts, ["notes.txt", "by-hand/step-000000001/rank-0.safetensors", "seg000-a1-e1x/step-1/a"])
    strangers = leave(killed, ["notes.txt", "step-000000099x/rank-0.json"])
    finish(fork_server, spec)
    assert len(there(later + strange + strangers)) == len(later + strange + strangers)


@pytest.mark.matrix
def test_an_attempt_that_is_alive_after_all_loses_its_upload_and_nothing_else(fork_server, spec, open_log):
    """It was taken for dead and its leftovers were swept; when it comes back, it is fenced and spoils nothing."""
    runlog = open_log(spec)
    zombie = fork_server.start(spec, SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-"))
    while not read_history(runlog).checkpoints:
        assert zombie.is_alive()
        SystemClock().sleep(0.02)
    os.kill(zombie.pid, signal.SIGSTOP)
    try:
        left = leave(folder_of(spec, read_history(runlog).attempts[0]), ORPHANS + HALF_WRITTEN)
        plan = SegmentPlan(segment=0, attempt=2, capacity=Capacity.SPOT, deployment="-")
        successor = fork_server.start(with_goal(spec), plan)
        successor.join(60)
        assert there(left) == []
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)
    assert zombie.exitcode == ExitCode.FENCED
    assert history_of(spec).newest.ref.attempt_id.startswith("seg000-a2-e2-")
    assert_every_usable_checkpoint_reads_back(spec)


@pytest.mark.parametrize("operation", ["drop_unfinished", "delete", pytest.param("list", marks=pytest.mark.soak)])
def test_a_store_that_does_not_let_us_tidy_does_not_stop_the_run(killed, spec, operation):
    left = leave(killed, ORPHANS + HALF_WRITTEN)
    report = train_here(spec, fails=lambda op, key: op == operation and "attempts" in key)
    assert report.stop_reason is StopReason.FINISHED
    assert len(there(left)) > 0
    assert_every_usable_checkpoint_reads_back(spec)


def test_what_could_not_be_deleted_once_is_deleted_later(killed, spec):
    orphans, failed = leave(killed, ORPHANS), []

    def fails(op, key):
        if op != "delete" or "step-000000099" not in key or failed:
            return False
        failed.append(key)
        return True

    # Enough saves: while a save is written, the next ones are left out, and a busy machine takes its time.
    train_here(spec, fails=fails, steps=400)
    assert failed
    assert there(orphans) == []


@pytest.mark.matrix
def test_who_may_not_list_uploads_still_gets_rid_of_orphans(killed, spec):
    """Many policies for a bucket allow to delete objects and not to list multipart uploads."""
    orphans = leave(killed, ORPHANS)
    leave(killed, HALF_WRITTEN)
    train_here(spec, fails=lambda op, key: op == "drop_unfinished")
    assert there(orphans) == []


def train_here(spec, *, fails, steps=30):
    """The next attempt, in this process, with a store that fails as asked."""
    from segue.trainer.attempt import run_attempt

    clock, runlog, spec = SystemClock(), log_of(spec), with_goal(spec, steps=steps)
    plan = decide_next(runlog, spec, clock=clock).plan
    flaky = FaultyStore(runlog.store, fails=fails)
    return run_attempt(
        Assignment(spec=spec, plan=plan),
        runlog=RunLog(flaky, spec.run_id).reload(),
        board=NoticeBoard(clock),
        clock=clock,
        shards=InlineWriter([flaky]),
    )


@pytest.mark.matrix
def test_the_ring_of_a_long_run_never_holds_more_than_it_should(fork_server, make_spec, open_log):
    spec = make_spec(steps=120, checkpoints={"every_steps": 4, "keep": 2}, config={"pause_seconds": 0.01})
    fork_server.run_to_the_end(open_log(spec), spec)
    history = history_of(spec)
    folders = {path.parent for path in Path(spec.store.url).rglob("rank-0.*")}
    assert len(history.checkpoints) > 5
    assert len(folders) == len(history.usable) <= 3  # Two of the newest, and the best by the metric.
    assert_every_usable_checkpoint_reads_back(spec)


@pytest.mark.matrix
def test_whatever_one_object_is_damaged_an_incremental_run_has_a_checkpoint_left(fork_server, make_spec, open_log):
    """Of those that are kept, not all may rest on the same shard: that is what keeping several is for."""
    checkpoints = {"every_steps": 5, "keep": 2, "full_every": 4}
    fields = {"recipe": "tests.recipes.frozen:build", "config": {"pause_seconds": 0.002}, "checkpoints": checkpoints}
    spec = make_spec(steps=10**6, **fields)
    fork_server.run_attempt(open_log(spec), spec, observer=kill_after(12))
    slots = log_of(spec).slots
    for moment in range(len(slots)):
        usable = fold(slots[: moment + 1]).usable
        if usable and usable[-1].manifest.step > first_full_after_the_first(slots):
            shards = [{shard.key for shard in checkpoint.manifest.shards} for checkpoint in usable]
            alone = [key for key in set.union(*shards) if all(key in needed for needed in shards)]
            assert alone == [], f"all of steps {[c.manifest.step for c in usable]} need it"
    assert_every_usable_checkpoint_reads_back(spec)


def first_full_after_the_first(slots):
    manifests = [slot.entry.manifest for slot in slots if isinstance(slot.entry, CommitEntry)]
    return [manifest.step for manifest in manifests if manifest.saves_since_full == 0][1]
