"""The disturber requests each disturbance when its moment has come, and counts only those that ended an attempt."""

from __future__ import annotations

import os
import signal
import time

import pytest

from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.notices.disturbance import requested_disturbance
from segue.runlog.history import read_history
from segue.verification.disturber import Disturber, Moment, disturbing, latency_seconds
from segue.verification.local_disturber import Target, is_due
from tests.support.forked_trainers import next_plan
from tests.verification.drills import KILL, NOTICE, ROW, Pair

CLOCK = SystemClock()
LASTS = {"steps": 400, "config": {"pause_seconds": 0.005}, "checkpoints": {"every_steps": 40}}


@pytest.fixture
def drill(make_spec, open_log):
    spec = make_spec(run_id="drill", **LASTS)
    return spec, open_log(spec)


def request_of(spec, runlog):
    attempt = read_history(runlog).attempts[-1]
    return requested_disturbance(runlog.store, run_id=spec.run_id, attempt_id=attempt.claim.attempt_id)


@pytest.mark.matrix
def test_a_request_comes_after_its_step_and_the_next_one_with_the_next_attempt(drill, fork_server):
    spec, runlog = drill
    disturber = Disturber(runlog, spec, [Moment(KILL, 100, 0.0), Moment(NOTICE, 200, 0.0)], clock=CLOCK)
    made = []
    for kind, number, step in ((KILL, signal.SIGKILL, 100), (NOTICE, signal.SIGTERM, 200)):
        plan = next_plan(runlog, spec)
        process = fork_server.start(spec, plan)
        with disturbing(disturber, spec):
            give_up_at = time.monotonic() + 60
            while not read_history(runlog).attempt_of(plan.segment, plan.attempt) or request_of(spec, runlog) is None:
                assert time.monotonic() < give_up_at
                time.sleep(0.02)
        assert request_of(spec, runlog).kind is kind
        assert read_history(runlog).newest is not None, "there is something to resume from"
        assert list(disturber.hits(read_history(runlog)).values()) == made, "a request alone is no hit"
        os.kill(process.pid, number)
        process.join()
        report = report_or_lost(runlog, plan, TrainerEnd(process.exitcode))
        assert report.to_step >= step - 40
        made.append(kind)
        assert list(disturber.hits(read_history(runlog)).values()) == made
    again = Disturber(runlog, spec, (), clock=CLOCK)
    assert list(again.hits(read_history(runlog)).values()) == [KILL, NOTICE], "what was requested before it counts"


def test_an_attempt_that_ended_otherwise_is_no_hit_and_the_disturbance_is_made_again(drill, fork_server):
    spec, runlog = drill
    disturber = Disturber(runlog, spec, [Moment(NOTICE, 41, 0.0)], clock=CLOCK)
    for _ in range(2):
        plan = next_plan(runlog, spec)
        process = fork_server.start(spec, plan)
        give_up_at = time.monotonic() + 60
        while not read_history(runlog).attempt_of(plan.segment, plan.attempt) or request_of(spec, runlog) is None:
            assert time.monotonic() < give_up_at
            disturber.look()
            time.sleep(0.02)
        process.kill()  # The provider was faster than the notice.
        process.join()
        report_or_lost(runlog, plan, TrainerEnd(process.exitcode))
        assert disturber.hits(read_history(runlog)) == {}


def test_nothing_is_requested_before_there_is_a_checkpoint(drill, fork_server):
    spec, runlog = drill
    disturber = Disturber(runlog, spec, [Moment(KILL, 1, 0.0)], clock=CLOCK)
    plan = next_plan(runlog, spec)
    disturber.look()
    process = fork_server.start(spec, plan)
    seen = []
    while process.is_alive() and read_history(runlog).newest is None:
        disturber.look()
        if read_history(runlog).attempts and read_history(runlog).newest is None:
            seen.append(request_of(spec, runlog))
    process.kill()
    process.join()
    assert set(seen) <= {None}
    assert seen


def test_the_latency_counts_the_looks_into_the_store_that_is_used(make_spec):
    near = make_spec(liveness={"heartbeat_seconds": 2.0})
    far = near.model_copy(update={"store": near.store.model_copy(update={"url": "s3://bucket/models"})})
    assert latency_seconds(near) == 2.0 + 2 * 0.5 + 1.5
    assert latency_seconds(far) == 2.0 + 2 * 2.0 + 1.5


@pytest.mark.parametrize(
    ("commit", "every_steps", "witness_steps", "known", "kind", "due"),
    [
        (40, 10, 8, 0, KILL, False),
        (40, 10, 8, 47, KILL, False),
        (40, 10, 8, 48, KILL, True),
        (40, 5, 8, 43, KILL, False),
        (40, 5, 8, 44, KILL, True),
        (35, 5, 8, 44, KILL, False),
        (49, 5, 8, 0, KILL, False),
        (50, 5, 8, 0, KILL, True),
        (40, 1, 8, 48, KILL, False),
        (42, 1, 8, 0, KILL, True),
        (40, 10, 0, 48, KILL, False),
        (40, 10, 8, 0, NOTICE, True),
    ],
)
def test_a_kill_waits_until_the_steps_after_the_commit_are_known_that_slow_steps_give(
    commit, every_steps, witness_steps, known, kind, due
):
    run = Pair().disturbed.book
    plan = run.plan()
    run.commit(run.claim(plan), commit)
    rows = [ROW.model_copy(update={"step": step}) for step in range(commit + 1, known + 1)]
    steps = {"every_steps": every_steps, "witness_steps": witness_steps}
    assert is_due(run.history, plan, Target(40, kind), **steps, beaten=lambda: rows) is due
