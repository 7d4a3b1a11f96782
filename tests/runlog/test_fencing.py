"""An attempt that was taken for lost goes on, reads come back wrong, a run is deleted: nothing of the run is harmed."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from segue.checkpoints.loading.select import newest_valid
from segue.checkpoints.pruning import Pruner
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.errors import LogReplacedError, StalePlanError, SupersededError, UnreadRecordError
from segue.launch.assignment import Assignment
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores.base import ObjectInfo, Store
from segue.trainer.claim import claim_run
from tests.checkpoints.test_adoption import HERE, Run


class WrongOnce:
    """A store whose next answers about one object have a flipped bit; nothing is wrong in the store."""

    def __init__(self, inner: Store, *, answers: int = 1) -> None:
        self.inner, self.end_of_key, self.answers = inner, "", answers

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def get(self, key: str) -> bytes:
        return self._flipped(key, self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._flipped(key, self.inner.get_range(key, start, length))

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        count = self.inner.read_into(key, start, into)
        into[:count] = self._flipped(key, bytes(into[:count]))
        return count

    def size(self, key: str) -> int:
        return self.inner.size(key) ^ self._is_due(key)

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        found = self.inner.list_objects(prefix, after=after)
        return [ObjectInfo(self._flipped(key, key.encode()).decode("latin-1"), size) for key, size in found]

    def afresh(self) -> WrongOnce:
        return self

    def _flipped(self, key: str, data: bytes) -> bytes:
        if not self._is_due(key):
            return data
        changed = bytearray(data)
        changed[len(changed) // 2] ^= 2
        return bytes(changed)

    def _is_due(self, key: str) -> bool:
        is_due = bool(self.end_of_key) and self.answers > 0 and key.endswith(self.end_of_key)
        self.answers -= is_due
        return is_due


@pytest.fixture
def run(make_spec) -> Run:
    return Run(make_spec(run_id="r", steps=1000, checkpoints={"keep": 2}))


def go_on(run: Run, claim, *steps: int, each: Callable[[], None] = lambda: None) -> None:
    """Save, commit and prune, as an attempt does."""
    pruner = Pruner(epoch=claim.epoch, retention=run.spec.checkpoints, tiers=[run.log.store])
    for step in steps:
        run.save(claim, step)
        run.commit(claim, step)
        each()
        pruner.prune(run.log)


def taken_for_lost(run: Run) -> tuple[Run, Run, WrongOnce]:
    """An attempt that committed 100 and 200 and lives on, the one that has claimed the run since, and a faulty view."""
    store = WrongOnce(run.log.store)
    old, new = Run(run.spec), Run(run.spec)
    old.log = RunLog(store, "r").reload()
    plan, old.claim = old.begin()
    for step in (100, 200):
        old.save(old.claim, step)
        old.commit(old.claim, step)
    new.dies(plan)
    new.plan, new.claim = new.begin()
    return old, new, store


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_a_newer_claim_that_is_misread_fences_as_if_it_had_been_read(run, answers):
    old, new, store = taken_for_lost(run)
    store.end_of_key, store.answers = keys.log_key("r", new.claim.slot), answers
    with pytest.raises(SupersededError):
        go_on(old, old.claim, 300, 400, 500)
    assert store.answers == 0
    history = read_history(RunLog(store.inner, "r").reload())
    assert [c.manifest.step for c in history.usable] == [100, 200]
    assert newest_valid(new.log, epoch=new.claim.epoch).checkpoint.manifest.step == 300  # Complete, and adopted.


def test_a_record_that_one_look_misread_is_read_again_by_that_look(run):
    old, new, store = taken_for_lost(run)
    store.end_of_key, store.answers = keys.log_key("r", new.claim.slot), 1
    assert (old.log.refresh().damage, old.log.highest_epoch) == ((), new.claim.epoch)
    assert store.answers == 0


def test_a_record_that_every_look_misread_is_read_again_before_an_attempt_ends_because_of_it(run):
    old, new, store = taken_for_lost(run)
    store.end_of_key, store.answers = keys.log_key("r", new.claim.slot), 5
    assert [damage.slot for damage in old.log.refresh().damage] == [new.claim.slot]
    with pytest.raises(SupersededError):
        go_on(old, old.claim, 300)


def test_a_record_that_may_be_a_newer_claim_stops_an_attempt_and_the_next_one_continues(run):
    old, new, store = taken_for_lost(run)
    path = store.inner.root / keys.log_key("r", new.claim.slot)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UnreadRecordError) as caught:
        go_on(old, old.claim, 300)
    assert (caught.value.key, caught.value.epoch) == (keys.log_key("r", new.claim.slot), old.claim.epoch)
    assert not any(isinstance(entry, str) for entry in caught.value.args[1:])
    third = Run(run.spec)
    third.dies(new.plan)
    _, claim = third.begin()
    assert claim.epoch > new.claim.epoch
    found = newest_valid(third.log, epoch=claim.epoch)
    assert found is not None
    assert found.checkpoint.manifest.step == 200  # What cannot be read may be its commit, so 300 is not adopted.
    go_on(third, claim, 300, 400)  # What is lost was named, so it holds up nothing more.
    assert [c.manifest.step for c in read_history(third.log).usable] == [300, 400]
    with pytest.raises(SupersededError):
        go_on(new, new.claim, 400)


def test_nothing_is_deleted_while_a_record_cannot_be_read_that_nobody_has_named(run):
    plan, claim = run.begin()
    go_on(run, claim, 100, 200)
    run.dies(plan)
    _, claim = run.begin()
    run.log.store.put(keys.log_key("r", 1), b"garbage")
    other = Run(run.spec)
    assert [damage.slot for damage in read_history(other.log).unread] == [1]
    go_on(other, claim, 300, 400)
    assert [c.manifest.step for c in read_history(other.log).usable] == [100, 200, 300, 400]
    assert newest_valid(other.log, epoch=claim.epoch) is not None  # It names what it could not read.
    go_on(other, claim, 500)
    assert [c.manifest.step for c in read_history(other.log).usable] == [400, 500]


@pytest.mark.parametrize("answers", [1, 3])
@pytest.mark.parametrize("what", ["log/00000004.json", "step-000000200/rank-0.safetensors", "000200/rank-0.json"])
def test_a_sound_checkpoint_that_is_misread_is_taken_all_the_same(run, what, answers):
    plan, claim = run.begin()
    for step in (100, 200):
        run.save(claim, step)
        run.commit(claim, step)
    run.dies(plan)
    store = WrongOnce(run.log.store, answers=answers)
    store.end_of_key = what
    again = Run(run.spec)
    again.log = RunLog(store, "r")
    _, claim = again.begin()
    found = newest_valid(again.log, epoch=claim.epoch)
    assert (found and found.checkpoint.manifest.step, store.answers) == (200, 0)
    history = read_history(RunLog(store.inner, "r").reload())
    assert ([c.quarantined for c in history.checkpoints], history.named_damage) == ([None, None], frozenset())


def test_a_save_whose_prepared_commit_is_misread_is_adopted(run):
    plan, claim = run.begin()
    run.save(claim, 100)
    run.dies(plan)
    store = WrongOnce(run.log.store)
    store.end_of_key = ".commit.json"
    run.log = RunLog(store, "r")
    _, claim = run.begin()
    found = newest_valid(run.log, epoch=claim.epoch)
    assert (found and found.checkpoint.manifest.step, store.answers) == (100, 0)


def test_an_old_trainer_writes_nothing_to_a_run_that_was_deleted_and_begun_again(run):
    _, zombie = run.begin()
    go_on(run, zombie, 100, 200)
    before = run.log.log_id
    shutil.rmtree(run.log.store.root / "r")
    new = Run(run.spec.model_copy(update={"seed": 7}))
    plan, claim = new.begin()
    assert (claim.epoch, new.log.log_id == before, claim.attempt_id == zombie.attempt_id) == (1, False, False)
    new.save(claim, 100, fill=2)
    new.commit(claim, 100)
    pruner = Pruner(epoch=zombie.epoch + 1, retention=run.spec.checkpoints, tiers=[run.log.store])
    run.save(zombie, 200, fill=1)
    for write in (lambda: go_on(run, zombie, 300), lambda: pruner.prune(run.log)):
        with pytest.raises(LogReplacedError) as caught:
            write()
        assert caught.value.log_id == before
        assert "deleted or replaced" in str(caught.value)
    new.dies(plan)
    _, claim = new.begin()
    found = newest_valid(new.log, epoch=claim.epoch)
    assert found is not None
    assert (found.checkpoint.manifest.step, float(found.snapshot.tensors["model.a"][0])) == (100, 2.0)
    assert [c.quarantined for c in read_history(new.log).checkpoints] == [None]


def test_an_old_parent_decides_nothing_for_a_run_that_was_deleted(run):
    plan, _ = run.begin()
    shutil.rmtree(run.log.store.root / "r")
    for act in (lambda: run.dies(plan), run.log.reload):
        with pytest.raises(LogReplacedError, match=r"is missing.*Fix: none needed if the run was deleted on purpose"):
            act()
    assert not (run.log.store.root / "r").exists()


def test_a_flow_run_of_a_deleted_run_that_starts_late_does_not_take_the_plan_of_the_new_one(run):
    late = decide_next(run.log, run.spec, clock=SystemClock()).plan
    shutil.rmtree(run.log.store.root / "r")
    new = Run(run.spec.model_copy(update={"seed": 7}))
    plan = decide_next(new.log, new.spec, clock=SystemClock()).plan
    assert (plan.segment, plan.attempt) == (late.segment, late.attempt)
    with pytest.raises(StalePlanError, match="was deleted later"):
        claim_run(RunLog(new.log.store, "r"), Assignment(spec=run.spec, plan=late), environment=HERE)
    assert new.begin()[1].epoch == 1
