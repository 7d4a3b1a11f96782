"""The parent and its standbys: submission, commands, hand-over, and no effect on the attempt on on-demand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from segue.controller.standbys.messages import StandbyStatus, command_of, put_status
from segue.controller.standbys.pool_standbys import release_leftover
from segue.controller.steps import decide_next
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.wait import await_report
from segue.policy.availability import intervals
from segue.policy.handover import SPOT_AGAIN
from segue.records import Capacity, SegmentPlan, SegmentReport, StopReason
from segue.runlog import keys
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import read_history
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from segue.trainer.claim import Claim
from tests.controller.test_steps import START
from tests.controller.test_wait import POLL, ScriptedClock, ScriptedOrchestrator, Watched

BOUND, FINISHED, LOST = StopReason.BOUND, StopReason.FINISHED, StopReason.LOST
# 100 steps of 10 s in 20,000 s. Eager Progress uses spot whenever it is available.
POLICY = {
    "name": "eager_progress",
    "step_seconds": 10,
    "changeover_seconds": 60,
    "detection_seconds": 15,
    "margin_share": 0,
}
NEVER_BACK = {"name": "slack_age", "parameters": {"pays_for": 1000}}
"""No up interval is long enough for a thousand changeovers."""


class ScriptedStandby:
    """A standby's flow run, whose state in the orchestrator the test sets."""

    def __init__(self) -> None:
        self.shows: str | None = None
        self.cancelled: list[str] = []


class ScriptedPools(ScriptedOrchestrator):
    """An orchestrator with standbys."""

    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__()
        self._clock = clock
        self.standbys: dict[str, ScriptedStandby] = {}
        self.sent: list[tuple[str, float]] = []
        self.is_silent = lambda: False

    def submit_standby(self, spec, standby: str, *, deployment: str) -> str | None:
        if self.is_silent():
            return None
        self.sent.append((standby, self._clock.monotonic()))
        self.standbys.setdefault(standby, ScriptedStandby())
        return standby

    def state(self, handle: str) -> str | None:
        return self.standbys[handle].shows if handle in self.standbys else super().state(handle)

    def cancel_standby(self, handle: str, why: str) -> None:
        self.standbys[handle].cancelled.append(why)


class StandbyRun(Watched):
    """A run on on-demand whose standbys the test simulates."""

    def __init__(self, spec) -> None:
        super().__init__(spec)
        self.child = self.pools = ScriptedPools(self.clock)
        self.pool, self.sent = self.pools.standbys, self.pools.sent
        self.phases: dict[str, str] = {}
        self.plan, self.training = self.first_attempt()
        self.beats_on(self.training)

    def first_attempt(self) -> tuple[SegmentPlan, Claim]:
        """The attempt that trains, which is on on-demand."""
        plan = self.decide().model_copy(update={"capacity": Capacity.ON_DEMAND, "start_within_seconds": None})
        facts = {"plan": plan, "action": "run", "reason": "chosen by the test"}
        self.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))
        return plan, self.claim(plan)

    def beats_on(self, claim: Claim, **fields) -> None:
        super().beats_on(claim, **fields)
        beat = self.clock.at_every_poll

        def all_beat() -> None:
            beat()
            for standby, phase in self.phases.items():
                self.put_status_of(standby, phase)

        self.clock.at_every_poll = all_beat

    def put_status_of(self, standby: str, phase: str, **fields) -> None:
        counter = int(self.clock.monotonic() * 10)
        status = StandbyStatus(standby=standby, counter=counter, phase=phase, beat_at=self.clock.now(), **fields)
        put_status(self.log.store, self.spec.run_id, status)

    def standby_enters(self, seconds: float, phase: str | None, standby: str = "spare0") -> None:
        """From then on the standby writes heartbeats in this phase; with None it writes none."""

        def become() -> None:
            self.phases.pop(standby, None)
            if phase is not None:
                self.phases[standby] = phase

        self.clock.at(seconds, become)

    def reports_at(self, seconds: float, reason: StopReason, **fields) -> None:
        self.clock.at(seconds, lambda: self.report(self.plan, self.training, reason, **fields))

    def when_recalled(self, reason: StopReason) -> None:
        """The attempt answers a recall two polls later."""
        inner = self.clock.at_every_poll

        def look() -> None:
            if self.recalls and not read_history(self.log).reports and self.clock.monotonic() > self.recalls[0] + 1:
                self.report(self.plan, self.training, reason)
            inner()

        self.clock.at_every_poll = look

    def wait_with_standbys(self, plan: SegmentPlan | None = None) -> SegmentReport:
        def fails(operation: str, key: str) -> bool:
            if self.is_store_down(operation, key):
                return True
            if operation == "put" and key.endswith("recall.json"):
                self.recalls.append(self.clock.monotonic())
            return False

        log = self.another_log()
        log.store = FaultyStore(open_store(self.spec.store), fails=fails)
        submitted = Submitted(plan or self.plan, self.pools, "attempt")
        return await_report(log, self.spec, submitted, clock=self.clock, with_standbys=True)

    def command(self, standby: str = "spare0") -> tuple[str, str]:
        command = command_of(self.log.store, self.spec.run_id, standby)
        return command.action, command.why

    @property
    def handovers(self) -> list[str]:
        return [slot.entry.standby for slot in self.log.refresh().slots if slot.entry.kind == "handover"]


@pytest.fixture
def standby_run(make_spec) -> Callable[..., StandbyRun]:
    def make(
        *, deadline_in: float = 20_000, committed: int | None = 20, start_seconds: float = 900, **policy
    ) -> StandbyRun:
        liveness = {"start_seconds": start_seconds}
        fields = {"steps": 100, "checkpoints": {"every_steps": 10}, "policy": POLICY | policy, "liveness": liveness}
        run = StandbyRun(make_spec(deadline=START + timedelta(seconds=deadline_in), **fields))
        if committed is not None:
            run.commit(run.training, committed)
        return run

    return make


@pytest.mark.matrix
def test_a_wanted_standby_boots_and_takes_over_when_it_is_ready(standby_run):
    run = standby_run()
    run.standby_enters(30, "here")
    actions: list[str] = []
    run.clock.at(35, lambda: actions.append(run.command()[0]))
    run.standby_enters(36, "booting")
    run.standby_enters(60, "ready")
    run.when_recalled(BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND
    assert run.sent == [("spare0", POLL)]
    assert actions == ["boot"]
    assert (run.handovers, run.command()[0], run.pool["spare0"].cancelled) == (["spare0"], "boot", [])
    assert len(run.recalls) == 1
    assert 60 <= run.recalls[0] <= 60 + 2 * POLL
    recall = keys.recall_key(run.spec.run_id, run.training.attempt_id)
    assert run.log.store.get(recall) == b"the standby is ready"
    decision = decide_next(run.log, run.spec, clock=run.clock)
    assert (decision.plan.capacity, decision.plan.standby, decision.reason) == (Capacity.SPOT, "spare0", SPOT_AGAIN)


@pytest.mark.matrix
def test_the_observation_of_spot_by_a_standby_is_recorded(standby_run):
    run = standby_run()
    run.standby_enters(30, "here")
    run.standby_enters(60, "ready")
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    began = run.clock.now() - timedelta(seconds=run.clock.monotonic())
    run.plan = decide_next(run.log, run.spec, clock=run.clock).plan
    run.report(run.plan, run.claim(run.plan), StopReason.LOST)
    waited, held = intervals(read_history(run.log))[-2:]
    assert (waited.is_up, waited.has_ended, held.is_up, held.has_ended) == (False, True, True, True)
    assert (waited.begun_at - began).total_seconds() == pytest.approx(POLL)
    assert waited.seconds == pytest.approx(30 - POLL, abs=2 * POLL)
    assert (held.begun_at - began).total_seconds() == pytest.approx(30, abs=2 * POLL)
    assert held.seconds >= 30


@pytest.mark.matrix
def test_the_wait_for_the_attempt_of_a_standby_is_like_any_other(standby_run):
    run = standby_run()
    run.standby_enters(30, "ready")
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    plan = run.decide()
    claim = run.claim(plan)
    run.beats_on(claim)
    run.clock.at(300, lambda: run.report(plan, claim, FINISHED))
    assert run.wait_with_standbys(plan).stop_reason is FINISHED
    assert [name for name, _ in run.sent] == ["spare0"]


@pytest.mark.matrix
def test_an_unwanted_standby_is_released_and_the_next_one_follows_after_a_pause(standby_run):
    run = standby_run(deadline_in=3000, **NEVER_BACK)
    for number, seconds in enumerate((10, 320)):
        run.standby_enters(seconds, "here", f"spare{number}")
    run.reports_at(330, FINISHED)
    run.wait_with_standbys()
    assert run.command("spare0") == run.command("spare1") == ("leave", "not needed: on-demand continues")
    assert [name for name, _ in run.sent] == ["spare0", "spare1"]
    # A tenth of the time left after the answer, which came at the poll after the first status.
    assert run.sent[1][1] == pytest.approx(10 + 299, abs=3 * POLL)
    assert (run.recalls, run.handovers) == ([], [])


@pytest.mark.matrix
def test_a_standby_that_stops_answering_while_it_boots_costs_nothing_and_is_replaced(standby_run):
    run = standby_run(deadline_in=3000)
    run.standby_enters(10, "here")
    run.standby_enters(12, "booting")
    run.standby_enters(20, None)
    run.reports_at(360, FINISHED)
    assert run.wait_with_standbys().stop_reason is FINISHED
    assert run.command("spare0") == ("leave", "no heartbeat for 30 s")
    assert [name for name, _ in run.sent] == ["spare0", "spare1"]
    assert run.sent[1][1] == pytest.approx(50 + 295, abs=5)
    assert (run.recalls, run.handovers, run.child.asked) == ([], [], [])


def test_a_standby_that_reports_that_it_leaves_is_released_at_once(standby_run):
    run = standby_run()
    run.standby_enters(10, "booting")
    run.clock.at(
        20, lambda: run.phases.clear() or run.put_status_of("spare0", "gone", note="the standby was taken back")
    )
    run.clock.at(21, lambda: known.append(run.command()))
    run.reports_at(30, FINISHED)
    known: list[tuple[str, str]] = []
    run.wait_with_standbys()
    assert known == [("leave", "the standby was taken back")]


def test_a_standby_whose_flow_run_ended_before_its_first_status_is_released(standby_run):
    run = standby_run()
    run.clock.at(10, lambda: setattr(run.pool["spare0"], "shows", "Crashed"))
    run.clock.at(20, lambda: known.append(run.command()))
    run.reports_at(30, FINISHED)
    known: list[tuple[str, str]] = []
    run.wait_with_standbys()
    assert known == [("leave", "its flow run ended as Crashed")]


@pytest.mark.matrix
def test_a_standby_that_does_not_boot_in_time_is_released(standby_run):
    run = standby_run(start_seconds=60)
    run.standby_enters(10, "booting")
    run.reports_at(150, FINISHED)
    run.wait_with_standbys()
    assert run.command("spare0") == ("leave", "it did not boot within 120 s")


@pytest.mark.matrix
def test_a_queued_standby_is_cancelled_when_the_attempt_ends(standby_run):
    run = standby_run()
    run.reports_at(100, FINISHED)
    run.wait_with_standbys()
    assert run.command() == ("leave", "on-demand has ended")
    assert run.pool["spare0"].cancelled == ["on-demand has ended"]


def test_a_parent_that_is_interrupted_releases_its_standby(standby_run):
    run = standby_run()

    def stop() -> None:
        raise KeyboardInterrupt

    run.clock.at(50, stop)
    with pytest.raises(KeyboardInterrupt):
        run.wait_with_standbys()
    assert run.command()[0] == "leave"
    assert len(run.pool["spare0"].cancelled) == 1


class Killed(BaseException):
    """Simulates SIGKILL: the process does nothing more to the store."""


def kill_parent(run: StandbyRun, seconds: float) -> None:
    def kill() -> None:
        run.is_store_down = lambda operation, key: True
        raise Killed

    run.clock.at(seconds, kill)
    with pytest.raises(Killed):
        run.wait_with_standbys()
    run.is_store_down = lambda operation, key: False
    for standby in run.pool.values():
        standby.cancelled.clear()


@pytest.mark.parametrize("phase", [None, "here", "booting"])
def test_a_parent_that_is_killed_and_started_again_adopts_the_standby(standby_run, phase):
    run = standby_run()
    run.standby_enters(20, phase)
    kill_parent(run, 25)
    run.standby_enters(60, "ready")
    run.when_recalled(BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND
    assert [name for name, _ in run.sent] == ["spare0", "spare0"]
    assert run.handovers == ["spare0"]


def test_a_parent_that_was_killed_before_the_recall_continues_the_hand_over(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.is_store_down = lambda operation, key: operation == "put" and key.endswith("recall.json")
    kill_parent(run, 40)
    run.when_recalled(BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND
    assert (run.handovers, len(run.recalls)) == (["spare0"], 1)


@pytest.mark.matrix
def test_a_restarted_parent_pauses_before_it_submits_a_standby_after_one_that_was_released(standby_run):
    run = standby_run(deadline_in=3000, **NEVER_BACK)
    run.standby_enters(10, "here")
    kill_parent(run, 30)
    run.reports_at(340, FINISHED)
    run.wait_with_standbys()
    assert [name for name, _ in run.sent] == ["spare0", "spare1"]
    assert run.sent[1][1] == pytest.approx(30 + 297, abs=5)


@pytest.mark.matrix
def test_a_standby_that_dies_after_the_recall_costs_one_changeover_and_the_run_continues(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    run.phases.clear()
    run.pool["spare0"].shows = "Crashed"
    plan = run.decide()
    report = run.wait_with_standbys(plan)
    assert (plan.standby, report.stop_reason, report.lost_steps) == ("spare0", StopReason.NO_CAPACITY, 0)
    after = decide_next(run.log, run.spec, clock=run.clock)
    assert (after.plan.standby, after.plan.parent.step) == (None, 20)


# A heartbeat timeout, 12 s for the answer, and the 100 s of work between two commits.
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("phase", "why", "seconds"),
    [
        ("training", "no answer to a recall for 30 s", 30),
        ("stopping", "it was recalled and did not end within 142 s", 142),
    ],
)
def test_an_attempt_that_does_not_end_for_its_standby_is_declared_lost_and_the_standby_takes_over(
    standby_run, phase, why, seconds
):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.clock.at(22, lambda: run.beats_on(run.training, phase=phase))
    report = run.wait_with_standbys()
    assert (report.stop_reason, report.note, run.child.asked) == (LOST, why, [f"mark lost: {why}"])
    assert seconds < run.clock.monotonic() - run.recalls[0] <= seconds + 3 * POLL
    assert len(run.recalls) == 1
    assert run.decide().standby == "spare0"


@pytest.mark.matrix
def test_an_attempt_that_a_killed_parent_has_recalled_is_declared_lost_by_the_next_parent(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.clock.at(22, lambda: run.beats_on(run.training, phase="stopping"))
    kill_parent(run, 40)
    assert run.wait_with_standbys().note == "it was recalled and did not end within 142 s"
    assert (run.handovers, run.decide().standby) == (["spare0"], "spare0")


@pytest.mark.matrix
def test_an_unreachable_store_does_not_count_against_an_attempt_that_hands_over(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.is_store_down = lambda operation, key: 22 <= run.clock.monotonic() < 200
    run.clock.at(202, lambda: run.beats_on(run.training, phase="stopping"))
    run.reports_at(210, BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND


def test_a_run_at_its_limit_of_preemptions_submits_no_standby(standby_run):
    run = standby_run(max_preemptions=0)
    run.reports_at(30, FINISHED)
    run.wait_with_standbys()
    assert run.sent == []


def test_an_attempt_that_dies_while_it_hands_over_leaves_the_run_to_the_standby(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.when_recalled(LOST)
    run.wait_with_standbys()
    assert run.decide().standby == "spare0"


def test_an_attempt_that_finishes_while_it_hands_over_ends_the_run(standby_run):
    run = standby_run()
    run.standby_enters(20, "ready")
    run.clock.at(20, lambda: run.commit(run.training, 100))
    run.when_recalled(FINISHED)
    assert run.wait_with_standbys().stop_reason is FINISHED
    assert decide_next(run.log, run.spec, clock=run.clock).action == "finished"


@pytest.mark.matrix
def test_a_submission_that_gets_no_answer_is_retried_for_the_same_standby(standby_run):
    run = standby_run()
    run.pools.is_silent = lambda: run.clock.monotonic() < 25
    run.reports_at(100, FINISHED)
    run.wait_with_standbys()
    assert run.sent == [("spare0", pytest.approx(30, abs=2))]


@pytest.mark.matrix
def test_store_errors_on_the_standbys_objects_do_not_disturb_the_attempt(standby_run):
    run = standby_run()
    run.is_store_down = lambda operation, key: "/spares/" in key
    run.reports_at(100, FINISHED)
    assert run.wait_with_standbys().stop_reason is FINISHED
    assert run.sent == []


def test_a_dead_attempt_is_noticed_while_the_standbys_objects_cannot_be_read(standby_run):
    run = standby_run()
    run.is_store_down = lambda operation, key: "/spares/" in key
    run.beats_on(run.training, until=50)
    assert run.wait_with_standbys().stop_reason is LOST
    assert run.clock.monotonic() < 90


# 800 s of work: the clamp needs 800 + 60 + 1.5 * 60 + 100 + 15 + 12 = 1077, and the recall another 27.
@pytest.mark.parametrize(("deadline_in", "is_sent"), [(1090, False), (1120, True)])
def test_no_standby_is_submitted_that_could_no_longer_take_over(standby_run, deadline_in, is_sent):
    run = standby_run(deadline_in=deadline_in)
    run.reports_at(5, FINISHED)
    run.wait_with_standbys()
    assert bool(run.sent) is is_sent


@pytest.mark.parametrize(("step_seconds", "is_sent"), [(10.0, True), (12.0, False)])
def test_the_attempts_own_rate_counts_when_it_is_slower_than_the_prior(standby_run, step_seconds, is_sent):
    run = standby_run(deadline_in=1150)
    run.beats_on(run.training, step_seconds=step_seconds)
    run.reports_at(5, FINISHED)
    run.wait_with_standbys()
    assert bool(run.sent) is is_sent


@pytest.mark.matrix
def test_a_standby_that_is_ready_too_late_is_released(standby_run):
    run = standby_run(deadline_in=1500)
    run.standby_enters(10, "booting")
    run.standby_enters(450, "ready")
    run.reports_at(460, FINISHED)
    run.wait_with_standbys()
    assert (run.handovers, run.recalls) == ([], [])
    assert run.command() == ("leave", "not needed: the slack no longer covers another spot attempt")


@pytest.mark.parametrize("policy", [{"name": "greedy"}, {"handover": False}])
def test_a_policy_that_does_not_return_to_spot_submits_no_standby(standby_run, policy):
    run = standby_run(**policy)
    run.reports_at(30, FINISHED)
    run.wait_with_standbys()
    assert run.sent == []


@pytest.mark.matrix
def test_the_parent_repeats_its_command_twice_in_a_heartbeat_timeout(standby_run):
    run = standby_run()
    run.standby_enters(10, "booting")
    run.reports_at(200, FINISHED)
    counters: list[int] = []
    for seconds in range(20, 200, 16):
        run.clock.at(seconds, lambda: counters.append(command_of(run.log.store, run.spec.run_id, "spare0").counter))
    run.wait_with_standbys()
    assert counters == sorted(set(counters))


def test_a_run_that_is_over_leaves_no_standby_on_the_pool(standby_run):
    run = standby_run()
    kill_parent(run, 20)
    release_leftover(run.log, run.spec, orchestrator=run.pools)
    assert run.command() == ("leave", "the run is over")
    assert run.pool["spare0"].cancelled == ["the run is over"]
    sent = len(run.sent)
    release_leftover(run.log, run.spec, orchestrator=run.pools)
    assert len(run.sent) == sent
