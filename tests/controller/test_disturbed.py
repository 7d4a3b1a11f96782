"""A segment of a drill ends its trainer when the store asks for it; a segment of any other run never looks."""

from __future__ import annotations

import threading

import pytest

from segue.clock import SystemClock
from segue.controller.supervision import DisturbedTrainer, look_seconds, supervising
from segue.notices.disturbance import Disturbance, DisturbanceKind, request_disturbance, requested_disturbance
from segue.records import StopReason
from segue.runlog import keys
from segue.runlog.history import read_history
from tests.controller.test_supervision import LONG, Segment, start
from tests.support.forked_trainers import next_plan

__all__ = ["start"]

CLOCK = SystemClock()
DRILL = {"continuity": {"rehearsal": "off", "disturbable": True}}


def request(runlog, attempt_id: str, kind: DisturbanceKind) -> None:
    made = Disturbance(kind=kind, requested_at=CLOCK.now())
    request_disturbance(runlog.store, made, run_id=runlog.run_id, attempt_id=attempt_id)


def attempt_of(segment: Segment) -> str:
    history = read_history(segment.runlog.reload())
    return history.attempt_of(segment.plan.segment, segment.plan.attempt).claim.attempt_id


class Recorder:
    """A trainer that only records how it is ended."""

    pid = 2**22

    def __init__(self) -> None:
        self.ended_by: list[str] = []

    def kill(self) -> None:
        self.ended_by.append("kill")

    def give_notice(self) -> None:
        self.ended_by.append("notice")

    def poll(self) -> int | None:
        return None


@pytest.mark.parametrize("kind", list(DisturbanceKind))
def test_a_request_is_carried_out_once_and_the_first_one_counts(make_spec, open_log, fork_server, kind):
    spec = make_spec(**DRILL)
    runlog = open_log(spec)
    plan, trainer = next_plan(runlog, spec), Recorder()
    disturbed = DisturbedTrainer(spec, plan, trainer, give_notice=trainer.give_notice, clock=CLOCK)
    disturbed.look()
    assert trainer.ended_by == [], "the attempt has not claimed the run"
    fork_server.start(spec, plan).join()
    disturbed.look()
    assert trainer.ended_by == [], "nothing is requested"
    (attempt,) = read_history(runlog.reload()).attempts
    request(runlog, attempt.claim.attempt_id, kind)
    other = next(other for other in DisturbanceKind if other is not kind)
    request(runlog, attempt.claim.attempt_id, other)
    for _ in range(3):
        disturbed.look()
    assert trainer.ended_by == [kind.value]
    found = requested_disturbance(runlog.store, run_id=spec.run_id, attempt_id=attempt.claim.attempt_id)
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize("is_drill", [False, True])
def test_only_segments_of_a_drill_look_for_requests(make_spec, open_log, is_drill):
    spec = make_spec(continuity={"rehearsal": "off", "disturbable": is_drill})
    plan = next_plan(open_log(spec), spec)
    with supervising(spec, plan, Recorder(), notices=list, clock=CLOCK):
        names = {thread.name for thread in threading.enumerate()}
    assert ("segue-supervisor-drill" in names) is is_drill


def test_a_remote_store_is_asked_once_a_heartbeat(make_spec):
    near = make_spec(liveness={"heartbeat_seconds": 2.0})
    far = near.model_copy(update={"store": near.store.model_copy(update={"url": "s3://bucket/models"})})
    assert (look_seconds(near), look_seconds(far)) == (0.0, 2.0)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "reason"), [(DisturbanceKind.KILL, StopReason.LOST), (DisturbanceKind.NOTICE, StopReason.NOTICE)]
)
def test_a_real_trainer_ends_as_a_provider_would_end_it(start, kind, reason):
    segment = start(**LONG | DRILL | {"grace_seconds": 25})
    segment.trains(step=30)
    request(segment.runlog, attempt_of(segment), kind)
    segment.ends()
    assert segment.report.stop_reason is reason
    is_notice = kind is DisturbanceKind.NOTICE
    assert ("without a report" in (segment.report.note or "")) is not is_notice
    assert not (is_notice and segment.report.lost_steps), "the notice's commit has every step"
    assert segment.relay.is_given is is_notice, "a machine that is taken back is not kept"


def test_the_request_lies_in_the_folder_of_its_attempt():
    assert keys.disturbance_key("run", "seg000-a1-e1") == "run/attempts/seg000-a1-e1/drill.json"
