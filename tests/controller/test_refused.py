"""What a person sees of attempts that their pool could not start, between them and while the next one waits."""

from __future__ import annotations

import logging

import pytest
import torch

from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next
from segue.controller.waiting.back_off import back_off
from segue.launch.assignment import Assignment
from segue.launch.launcher import Ending
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.trainer.claim import claim_run
from segue.trainer.process.environment import environment_of
from tests.controller.test_wait import Watched
from tests.support.forked_trainers import next_plan

WHY = "the pool spot could not start it: 503"
SAID = f"the pools could not start {{count}} in a row, last: {WHY}. Fix: correct what the pool reports"


@pytest.fixture
def run(make_spec):
    return Watched(make_spec(steps=100, checkpoints={"every_steps": 10}))


def refused(run, *, times):
    """Attempts whose flow runs crashed before they began, by the parent's own loop."""
    run.child.shows, run.child.refused = "Crashed", WHY
    for _ in range(times):
        plan = decide_next(run.log, run.spec, clock=run.clock).plan
        back_off(run.log, plan, clock=run.clock, show=run.shown.append)
        assert run.wait(plan).was_refused
    run.child.shows = run.child.refused = None


def test_the_pause_after_a_refusal_shows_why_and_how_often(run):
    refused(run, times=3)
    run.shown.clear()
    plan = decide_next(run.log, run.spec, clock=run.clock).plan
    before = run.clock.monotonic()
    back_off(run.log, plan, clock=run.clock, show=run.shown.append)
    assert run.clock.monotonic() - before == plan.delay_seconds == 20
    shown, end = run.shown
    assert shown.startswith("the next attempt, 20 s after the last one: " + SAID.format(count="3 attempts"))
    assert end is None
    assert SAID.format(count="3 attempts") in read_history(run.log).decisions[-1].reason


def test_the_next_attempt_shows_the_refusals_until_its_pool_says_something_or_it_begins(run):
    refused(run, times=2)
    run.shown.clear()
    plan = run.decide()
    run.clock.at(run.clock.monotonic() + 20, lambda: setattr(run.child, "blocker", "the pool spot is paused"))

    def begin():
        claim = run.claim(plan)
        run.reports(run.clock.monotonic() + 5, plan, claim, StopReason.NOTICE)

    run.clock.at(run.clock.monotonic() + 30, begin)
    run.wait(plan)
    first, second, last = run.shown
    assert first.startswith("waiting for spot capacity (segment/spot): " + SAID.format(count="2 attempts"))
    assert second == "waiting for spot capacity (segment/spot): the pool spot is paused"
    assert last is None


def test_refusals_are_logged_as_often_as_they_double(run, caplog):
    with caplog.at_level(logging.WARNING):
        refused(run, times=9)
    warned = [record.message for record in caplog.records if "could not start" in record.message]
    counts = ["the last attempt", "2 attempts", "4 attempts", "8 attempts"]
    assert [any(message.startswith(f"the pools could not start {count}") for message in warned) for count in counts]
    assert len(warned) == len(counts)


@pytest.mark.parametrize("was_claimed", [False, True])
def test_a_trainer_that_was_taken_out_of_its_queue_was_refused_unless_it_has_run(make_spec, open_log, was_claimed):
    spec = make_spec()
    runlog = open_log(spec)
    plan = next_plan(runlog, spec)
    if was_claimed:
        claim_run(runlog, Assignment(spec=spec, plan=plan), environment=environment_of(torch.device("cpu")))
    ending = Ending("its Slurm job 7 ended as CANCELLED", had_machine=False, was_refused=True)
    report = report_or_lost(runlog, plan, TrainerEnd(-9, elsewhere=ending))
    assert (report.was_refused, report.got_capacity) == (not was_claimed, was_claimed)
    assert report.stop_reason is (StopReason.LOST if was_claimed else StopReason.NO_CAPACITY)
    assert "CANCELLED" in report.note
