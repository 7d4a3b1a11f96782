"""A save that is complete but for its commit record: the next attempt commits it, and only then."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from segue.checkpoints.loading.adoption import adopt_last_save
from segue.checkpoints.loading.select import newest_valid
from segue.checkpoints.saving.partition import Partition
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import PreparedCommit, Save, Written
from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next, open_run
from segue.errors import FencedError
from segue.launch.assignment import Assignment
from segue.records import Environment, StopReason, VerdictKind
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, VerdictEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.trainer.claim import claim_run

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
TWO_RANKS = HERE.model_copy(update={"world_size": 2})


class Run:
    """A run whose attempts save as trainers do, and may be killed before the commit record."""

    def __init__(self, spec) -> None:
        self.spec = spec
        self.log = open_run(spec, clock=SystemClock())

    def begin(self):
        """Decide and claim the next attempt."""
        plan = decide_next(self.log, self.spec, clock=SystemClock()).plan
        return plan, claim_run(self.log, Assignment(spec=self.spec, plan=plan), environment=HERE)

    def save(self, claim, step, *, rank=0, count=1, parent=None, fill=None) -> None:
        """Write a save up to the moment before its commit record."""
        partition = Partition(rank, count, is_same_everywhere=lambda name: True)
        tensors = {"a": torch.full((100,), float(fill or step)), "b": torch.zeros(100)}
        staged = StagingArea(partition=partition).take({"model": tensors, "progress": {"step": step}})
        environment = TWO_RANKS if count == 2 else HERE
        facts = {"step": step, "samples_seen": 32 * step, "epoch": 0, "metric": None, "parent": parent}
        save = Save(
            self.spec.run_id, claim.attempt_id, step, facts=facts | {"environment": environment.model_dump(mode="json")}
        )
        InlineWriter([self.log.store], rank=rank).write(staged, save)

    def commit(self, claim, step) -> None:
        """Write the record of a save."""
        data = self.log.store.get(f"{self.spec.run_id}/{keys.prepared_name(claim.attempt_id, step, 0)}")
        prepared = PreparedCommit.decode(data)
        fields = {**prepared.facts, **prepared.written.to_json()}
        self.log.append(
            lambda stamp: CommitEntry.model_validate(
                stamp(epoch=claim.epoch) | {"attempt_id": claim.attempt_id, "manifest": fields}
            ),
            epoch=claim.epoch,
        )

    def dies(self, plan) -> None:
        declare_lost(self.log, plan, why="the trainer was killed by SIGKILL without a report")

    def path(self, claim, step, name="rank-0.commit.json"):
        (found,) = self.log.store.root.glob(f"*/attempts/{claim.attempt_id}/step-{step:09d}/{name}")
        return found


@pytest.fixture
def run(make_spec) -> Run:
    return Run(make_spec())


def killed_with_a_save(run, *, steps=(10, 20), committed=(10,)):
    plan, claim = run.begin()
    for step in steps:
        run.save(claim, step)
        if step in committed:
            run.commit(claim, step)
    run.dies(plan)
    return claim


def test_the_newest_save_is_committed_for_the_attempt_that_wrote_it(run):
    first = killed_with_a_save(run)
    assert read_history(run.log).committed_step == 10
    _, second = run.begin()
    ref = adopt_last_save(run.log, epoch=second.epoch)
    assert (ref.step, ref.attempt_id) == (20, first.attempt_id)
    history = read_history(RunLog(run.log.store, run.spec.run_id).reload())
    assert history.committed_step == 20
    report = history.report_of(0, 1)
    assert (report.checkpoint, report.lost_steps, report.stop_reason) == (ref, 0, StopReason.LOST)
    found = newest_valid(run.log, epoch=second.epoch)
    assert found.checkpoint.ref == ref
    assert torch.equal(found.snapshot.tensors["model.a"], torch.full((100,), 20.0))


def test_the_first_save_of_a_run_is_adopted_too(run):
    killed_with_a_save(run, steps=(10,), committed=())
    _, second = run.begin()
    assert newest_valid(run.log, epoch=second.epoch).checkpoint.manifest.step == 10


def test_adopting_is_done_once(run):
    killed_with_a_save(run)
    _, second = run.begin()
    adopt_last_save(run.log, epoch=second.epoch)
    records = run.log.next_slot
    assert adopt_last_save(run.log, epoch=second.epoch) is None
    assert run.log.next_slot == records


def test_an_older_save_than_the_newest_commit_is_not_adopted(run):
    killed_with_a_save(run, steps=(10, 20, 30), committed=(10, 30))
    _, second = run.begin()
    assert adopt_last_save(run.log, epoch=second.epoch) is None


def test_an_attempt_that_is_fenced_itself_adopts_nothing(run):
    killed_with_a_save(run)
    plan, second = run.begin()
    run.dies(plan)
    run.begin()
    with pytest.raises(FencedError):
        adopt_last_save(run.log, epoch=second.epoch)


def test_the_save_of_a_resume_without_a_sound_verdict_is_not_adopted(run):
    killed_with_a_save(run, steps=(10,))
    parent = read_history(run.log).newest.ref
    plan, second = run.begin()
    run.save(second, 20)
    run.dies(plan)
    _, third = run.begin()
    assert adopt_last_save(run.log, epoch=third.epoch) is None
    verdict = {"kind": VerdictKind.EXACT}
    facts = {"attempt_id": second.attempt_id, "parent": parent, "verdict": verdict}
    run.log.append(lambda stamp: VerdictEntry.model_validate(stamp(epoch=0) | facts))
    assert adopt_last_save(run.log, epoch=third.epoch).step == 20


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_without_its_prepared_commit_a_save_is_not_adopted(run, damage):
    first = killed_with_a_save(run)
    damage(run.path(first, 20))
    _, second = run.begin()
    assert adopt_last_save(run.log, epoch=second.epoch) is None
    assert newest_valid(run.log, epoch=second.epoch).checkpoint.manifest.step == 10


def test_an_adopted_save_whose_bytes_are_damaged_is_quarantined_and_the_one_before_used(run):
    first = killed_with_a_save(run)
    flip(run.path(first, 20, "rank-0.safetensors"))
    _, second = run.begin()
    assert newest_valid(run.log, epoch=second.epoch).checkpoint.manifest.step == 10
    (quarantined,) = [c for c in read_history(run.log).checkpoints if c.quarantined]
    assert quarantined.manifest.step == 20


@pytest.mark.parametrize(("ranks", "same", "adopted"), [((0, 1), True, 10), ((0,), True, None), ((0, 1), False, None)])
def test_a_save_of_several_ranks_is_adopted_when_all_of_them_completed_the_same_one(run, ranks, same, adopted):
    plan, claim = run.begin()
    for rank in ranks:
        run.save(claim, 10, rank=rank, count=2)
    if not same:
        path = run.path(claim, 10, "rank-1.commit.json")
        part = PreparedCommit.decode(path.read_bytes())
        path.write_bytes(PreparedCommit(part.facts, part.written, "another state").encode())
    run.dies(plan)
    _, second = run.begin()
    found = newest_valid(run.log, epoch=second.epoch)
    assert (found.checkpoint.manifest.step if found else None) == adopted
    # Not even a record is written that would have to be quarantined.
    assert [c.manifest.step for c in read_history(run.log).checkpoints] == ([] if adopted is None else [adopted])
    if found is not None:
        assert set(found.snapshot.tensors) == {"model.a", "model.b"}


@pytest.mark.parametrize("has_other_part", [False, True])
def test_a_save_that_rank_0_made_alone_after_the_loss_of_another_rank_is_adopted(run, has_other_part):
    plan, claim = run.begin()
    run.save(claim, 10)
    path = run.path(claim, 10, "rank-0.commit.json")
    part = PreparedCommit.decode(path.read_bytes())
    facts = {**part.facts, "environment": TWO_RANKS.model_dump(mode="json"), "lost_ranks": [1]}
    path.write_bytes(PreparedCommit(facts, part.written, part.partition_hash).encode())
    if has_other_part:  # Of an ordinary save of the same step, for which rank 0 waited in vain.
        other = PreparedCommit({**facts, "lost_ranks": []}, part.written, "of two parts")
        path.with_name(path.name.replace("rank-0", "rank-1")).write_bytes(other.encode())
    run.dies(plan)
    _, second = run.begin()
    found = newest_valid(run.log, epoch=second.epoch)
    assert (found.checkpoint.manifest.step, found.checkpoint.manifest.lost_ranks) == (10, (1,))


def test_a_damaged_log_adopts_nothing(run):
    killed_with_a_save(run)
    run.log.store.root.joinpath(keys.log_key(run.spec.run_id, 3)).write_bytes(b"{}")
    fresh = RunLog(run.log.store, run.spec.run_id).reload()
    assert fresh.damage
    assert adopt_last_save(fresh, epoch=9) is None


def test_between_broken_resumes_nothing_is_adopted(run):
    killed_with_a_save(run)
    parent = read_history(run.log).newest.ref
    _, second = run.begin()
    finding = {"component": "optimizer", "channel": "digest", "sentence": "optimizer state differs"}
    facts = {"attempt_id": second.attempt_id, "parent": parent, "verdict": {"kind": "broken", "findings": [finding]}}
    run.log.append(lambda stamp: VerdictEntry.model_validate(stamp(epoch=0) | facts))
    assert read_history(run.log).broken_resumes
    assert adopt_last_save(run.log, epoch=second.epoch) is None


def test_what_is_encoded_is_decoded():
    written = Written(shards=(), components={"model": "x"}, tensor_count=0, new_bytes=0, saves_since_full=0)
    prepared = PreparedCommit({"step": 3, "metric": "NaN"}, written, "hash")
    assert PreparedCommit.decode(prepared.encode()) == prepared


KILLED = """
import sys
from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from benchmarks.crash.killing_store import KillingStore, KillPoint, Moment, Operation
from segue.trainer.attempt import run_attempt
spec, clock = RunSpec.model_validate_json(sys.argv[1]), SystemClock()
plan = decide_next(open_run(spec, clock=clock), spec, clock=clock).plan
at = KillPoint(operation=Operation.COMMIT_APPEND, moment=Moment.BEFORE, number=2)
log = RunLog(KillingStore(open_store(spec.store), at=at), spec.run_id)
run_attempt(Assignment(spec=spec, plan=plan), runlog=log, board=NoticeBoard(clock), clock=clock)
"""


@pytest.mark.matrix
def test_a_trainer_killed_before_a_commit_record_loses_no_step_of_that_save(fork_server, make_spec, open_log):
    paced = {"config": {"pause_seconds": 0.05}}
    undisturbed = make_spec(run_id="undisturbed", **paced)
    reference = open_log(undisturbed)
    fork_server.run_to_the_end(reference, undisturbed)
    spec = make_spec(**paced)
    command = [sys.executable, "-c", KILLED, spec.model_dump_json()]
    died = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    runlog = open_log(spec)
    plan = read_history(runlog).open_plan
    assert read_history(runlog).committed_step == 10
    declare_lost(runlog, plan, why="killed")
    last = fork_server.run_attempt(runlog, spec)
    history = read_history(runlog.reload())
    assert (last.stop_reason, last.from_step) == (StopReason.FINISHED, 20)
    assert history.attempts[1].verdict.kind in (VerdictKind.EXACT, VerdictKind.UNVERIFIED)
    assert history.newest.manifest.components == read_history(reference).newest.manifest.components
