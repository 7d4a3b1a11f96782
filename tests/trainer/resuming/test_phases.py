"""The phases of a resume as a table: which rows complete it, what a difference before a step is, what may be noise."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from segue.checkpoints.format.digests import Digests
from segue.checkpoints.loading.live_digest import Looks
from segue.continuity.noise import NONE
from segue.continuity.recipe_diff import SetupChanges
from segue.continuity.verdict import Prelude
from segue.errors import BrokenResumeError
from segue.records import CheckpointRef, Environment, Finding, VerdictKind, WitnessRow
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from segue.trainer.resuming.comparison import Comparison, RestoredState
from segue.trainer.resuming.found import Found
from segue.trainer.resuming.judge import Replaying, may_be_noise
from segue.trainer.resuming.resume import Resume

STATE = Digests(components={"model": "1", "optimizer": "2"}, tensors={})
HERE = Environment(torch="2.0", device="cpu", instruction_set="AVX2", threads=1)
OTHER_HAND = Finding(component="model.drop.p", channel="setup", sentence="model.drop.p was 0.1, now 0.5")


def row(step: int, **changes: object) -> WitnessRow:
    fields = {"step": step, "loss": 0.5, "grad_norm": 2.0, "param_norm": 7.0, "lr": (0.01,)}
    return WitnessRow(**(fields | {"batch_fingerprint": f"batch{step}", "input_fingerprint": f"input{step}"} | changes))


def prelude(step: int, *, batch: str | None = None) -> Prelude:
    return Prelude(step, batch or f"batch{step}", f"input{step}", None)


@pytest.fixture
def replaying():
    """The replay of steps 11 to 13, before the first of them."""
    witness = tuple(row(step) for step in (11, 12, 13))
    comparison = Comparison(
        checkpoint=SimpleNamespace(ref=CheckpointRef(step=10, attempt_id="a", slot=3)),
        committed=STATE,
        restored=RestoredState(STATE, Looks.at({})),
        environment_changes=(),
        other_packages=(),
        has_other_kernels=False,
        setup=SetupChanges(),
        untracked=(),
        values_at_commit={},
        as_built=frozenset(),
        witness=witness,
        last_witnessed=13,
    )
    return Replaying(comparison)


def test_a_replay_is_complete_with_the_last_row_that_has_a_witness_and_is_then_exact(replaying):
    for step in (11, 12):
        replaying = replaying.with_row(row(step))
        assert not replaying.is_complete
    replaying = replaying.with_row(row(13))
    verdict = replaying.verdict(NONE)
    assert replaying.is_complete
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 3)


def test_a_row_makes_a_new_value_and_leaves_the_old_one_as_it_was(replaying):
    assert replaying.with_row(row(11)).rows == (row(11),)
    assert replaying.rows == ()


@pytest.mark.parametrize(("step", "batch", "is_found"), [(11, None, False), (11, "other", True), (14, "other", False)])
def test_another_batch_is_found_before_its_step_if_that_step_has_a_witness(replaying, step, batch, is_found):
    assert bool(replaying.differences_before(prelude(step, batch=batch))) is is_found


def test_a_difference_before_a_step_breaks_a_resume_and_is_no_noise(replaying):
    early = replaying.differences_before(prelude(11, batch="other"))
    verdict = replace(replaying, early=early).verdict(NONE)
    assert verdict.kind is VerdictKind.BROKEN
    assert verdict.findings[0].component == "data order"


def test_another_number_in_a_step_may_be_noise_and_lost_state_is_none(replaying):
    nearly = replaying.with_row(row(11, loss=math.nextafter(0.5, 1)))
    assert may_be_noise(nearly.verdict(NONE))
    lost = Digests(components={"model": "9", "optimizer": "2"}, tensors={})
    restored = RestoredState(lost, Looks.at({}))
    broken = replace(replaying, comparison=replace(replaying.comparison, restored=restored))
    assert broken.comparison.is_lost
    assert broken.verdict(NONE).kind is VerdictKind.BROKEN
    assert not may_be_noise(broken.verdict(NONE))


def test_what_another_hand_changed_is_named_only_once_it_is_noted(replaying):
    found = replace(replaying.with_row(row(11, loss=0.6)), other_hands=(OTHER_HAND,))
    assert OTHER_HAND.sentence not in found.verdict(NONE).sentence
    assert OTHER_HAND.sentence in found.noting_other_hands().verdict(NONE).sentence


@pytest.mark.parametrize(("forked_from", "as_built"), [(None, set()), ("another run", {"scheduler"})])
def test_a_fork_begins_as_built_with_what_the_other_run_did_not_store(forked_from, as_built):
    manifest = SimpleNamespace(forked_from=forked_from)
    source = SimpleNamespace(
        checkpoint=SimpleNamespace(manifest=manifest), snapshot=SimpleNamespace(skeletons={"model": {}})
    )
    assert Found(source, None, None).as_built({"model": None, "scheduler": None}) == as_built


class Asked:
    """Fresh processes that have no time when they are asked first, because of a notice."""

    def __init__(self) -> None:
        self.count = 0

    def noise(self, *_, **__):
        self.count += 1
        return None if self.count == 1 else NONE


def test_a_resume_that_a_notice_left_undecided_is_judged_once_the_notice_is_withdrawn(replaying, tmp_path):
    runlog = RunLog(LocalStore(tmp_path).create(), "run")
    resume = Resume(runlog, SimpleNamespace(epoch=0, attempt_id="b"), environment=HERE)
    resume.judge_on(HERE, opinion=Asked())
    resume._phase = replaying
    for made in (row(11), row(12), row(13, loss=0.9)):
        resume.add_replayed(SimpleNamespace(as_witness=lambda made=made: made))
    assert (resume.is_pending, resume.is_undecided) == (True, True)
    with pytest.raises(BrokenResumeError):
        resume.settle()
    assert (resume.is_pending, resume.is_undecided) == (False, False)
