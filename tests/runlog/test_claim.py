"""The claim: a higher epoch than all that may have been claimed, and none for a plan that is not the newest."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next, open_run, request_stop
from segue.errors import StalePlanError
from segue.launch.assignment import Assignment
from segue.records import Environment
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.trainer.claim import claim_run

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


@pytest.fixture
def spec(make_spec):
    return make_spec()


@pytest.fixture
def runlog(spec):
    return open_run(spec, clock=SystemClock())


def decided(runlog, spec):
    return Assignment(spec=spec, plan=decide_next(runlog, spec, clock=SystemClock()).plan)


def test_each_claim_has_a_higher_epoch(runlog, spec):
    epochs = []
    for _ in range(3):
        asked = decided(runlog, spec)
        epochs.append(claim_run(runlog, asked, environment=HERE).epoch)
        declare_lost(runlog, asked.plan, why="killed")
    assert epochs == [1, 2, 3]


def test_a_slot_that_cannot_be_read_may_have_held_a_claim(runlog, spec):
    first = decided(runlog, spec)
    claim = claim_run(runlog, first, environment=HERE)
    declare_lost(runlog, first.plan, why="killed")
    second = decided(runlog, spec)
    runlog.store.root.joinpath(keys.log_key(spec.run_id, claim.slot)).write_bytes(b"rot")
    again = RunLog(runlog.store, spec.run_id)
    assert claim_run(again, second, environment=HERE).epoch >= claim.epoch + 1


def test_a_plan_is_claimed_once(runlog, spec):
    asked = decided(runlog, spec)
    claim_run(runlog, asked, environment=HERE)
    with pytest.raises(StalePlanError, match="already claimed"):
        claim_run(RunLog(runlog.store, spec.run_id), asked, environment=HERE)


def test_a_plan_whose_end_is_reported_is_not_claimed(runlog, spec):
    asked = decided(runlog, spec)
    declare_lost(runlog, asked.plan, why="it never began")
    with pytest.raises(StalePlanError, match="already reported"):
        claim_run(runlog, asked, environment=HERE)


def test_a_plan_after_which_another_was_decided_is_not_claimed(runlog, spec):
    first = decided(runlog, spec)
    declare_lost(runlog, first.plan, why="it never began")
    second = decided(runlog, spec)
    assert first.plan.segment == second.plan.segment
    with pytest.raises(StalePlanError, match="was decided later"):
        claim_run(runlog, first, environment=HERE)
    assert read_history(runlog).attempts == ()


def test_nothing_is_claimed_once_the_run_is_stopped(runlog, spec):
    asked = decided(runlog, spec)
    request_stop(runlog, reason="enough")
    with pytest.raises(StalePlanError, match="stopped"):
        claim_run(runlog, asked, environment=HERE)
