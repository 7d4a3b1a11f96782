"""A run's own measurements, and that a deadline that can be met is met, whatever spot does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segue.policy import clamp
from segue.policy.estimates import at_risk_seconds, detection_seconds, save_seconds, situation, step_seconds
from segue.records import Capacity, SegmentPlan, SegmentReport, StopReason
from tests.support.histories import START, Logbook, make_spec

LOST, NOTICE, BOUND, FINISHED = StopReason.LOST, StopReason.NOTICE, StopReason.BOUND, StopReason.FINISHED


def measured(steps: int, seconds: float) -> dict[str, float]:
    return {"train_steps": steps, "train_seconds": seconds}


def test_the_rate_is_the_prior_until_an_attempt_has_measured_one():
    book = Logbook(make_spec(policy={"step_seconds": 3}))
    assert step_seconds(book.spec, book.history) == 3
    book.attempt(LOST)
    assert step_seconds(book.spec, book.history) == 3
    book.attempt(LOST, **measured(4, 60.0))
    assert step_seconds(book.spec, book.history) == 3  # Four steps count less than the prior.
    hours = Logbook(make_spec(policy={"step_seconds": 900}))
    hours.attempt(LOST, **measured(2, 7200.0))
    assert step_seconds(hours.spec, hours.history) == 3600  # Two of an hour are enough.
    book.attempt(LOST, **measured(10, 5.0))
    assert step_seconds(book.spec, book.history) == 0.5


def test_without_a_prior_a_few_steps_are_all_there_is():
    book = Logbook(make_spec())
    book.attempt(LOST, **measured(2, 4.0))
    assert step_seconds(book.spec, book.history) == 2.0


@pytest.mark.parametrize(
    ("attempts", "rate"),
    [
        ([(10, 10.0), (20, 40.0), (70, 70.0)], 1.0),
        ([(10, 10.0), (20, 40.0), (5, 5.0)], 2.0),
        ([(50, 50.0), (50, 100.0)], 2.0),  # Half each: the slower, for safety.
        ([(300, 300.0), (3, 90.0)], 1.0),  # A few slow steps count little.
        ([(400, 4000.0)] + [(100, 100.0)] * 5, 1.0),  # Long ago.
        ([(400, 400.0)] * 4 + [(100, 6000.0)], 1.0),  # One attempt that stood still for an hour and a half.
    ],
)
def test_the_rate_is_the_median_of_the_newest_attempts_by_their_steps(attempts, rate):
    book = Logbook(make_spec(policy={"max_lost_in_place": 99}))
    assert step_seconds(book.spec, book.history) is None
    for steps, seconds in attempts:
        book.attempt(LOST, **measured(steps, seconds))
    assert step_seconds(book.spec, book.history) == rate


@pytest.mark.parametrize(("on_demand", "rate"), [(3.0, 3.0), (0.5, 1.0)])
def test_where_on_demand_was_slower_its_pace_counts(on_demand, rate):
    book = Logbook(make_spec(policy={"max_lost_in_place": 99}))
    book.attempt(LOST, Capacity.ON_DEMAND, **measured(10, 10 * on_demand))
    for _ in range(4):
        book.attempt(LOST, **measured(100, 100.0))
    assert step_seconds(book.spec, book.history) == rate


def test_the_word_of_the_attempt_itself_replaces_the_guess_about_it():
    book = Logbook(make_spec())
    plan = book.plan()
    name = book.claim(plan)
    book.report(plan, LOST, attempt_id=name, **measured(10, 90.0))
    book.report(plan, NOTICE, attempt_id=name, **measured(10, 10.0))
    assert step_seconds(book.spec, book.history) == 1.0


def test_a_changeover_runs_from_the_decision_to_the_first_step_and_only_lengthens_the_prior():
    book = Logbook(make_spec(policy={"changeover_seconds": 60}))

    def changeover() -> float:
        return situation(book.spec, book.history, now=book.now).changeover_seconds

    def attempt(boot: float, startup: float, **fields: float) -> None:
        plan = book.plan()
        book.seconds += boot
        book.report(plan, LOST, attempt_id=book.claim(plan), startup_seconds=startup, **fields)

    assert changeover() == 60
    attempt(40, 19, **measured(1, 1.0))
    assert changeover() == 60
    attempt(500, 500)  # It never came to a step: how long it would have taken is not known.
    assert changeover() == 60
    attempt(40, 30, **measured(1, 1.0))
    assert changeover() == 70


def test_a_wait_for_spot_is_no_usual_changeover_but_the_clamp_counts_it():
    book = Logbook(make_spec(policy={"changeover_seconds": 60, "max_lost_in_place": 99}))

    def attempt(capacity: Capacity, *, to_claim: float) -> tuple[float, float]:
        plan = book.plan(capacity)
        book.seconds += to_claim
        book.report(plan, LOST, attempt_id=book.claim(plan), startup_seconds=50, **measured(10, 10.0))
        here = situation(book.spec, book.history, now=book.now)
        return here.expected_changeover_seconds, here.changeover_seconds

    assert attempt(Capacity.SPOT, to_claim=900) == (950, 950)  # Who knows: no shorter way was seen yet.
    assert attempt(Capacity.SPOT, to_claim=5) == (60, 950)
    assert attempt(Capacity.SPOT, to_claim=400) == (60, 950)
    for to_claim in (300, 300, 300):
        usual, longest = attempt(Capacity.ON_DEMAND, to_claim=to_claim)
    assert (usual, longest) == (350, 350)


def test_a_start_of_on_demand_may_take_longer_than_is_known():
    book = Logbook(make_spec(policy={"changeover_seconds": 60, "max_lost_in_place": 99}))

    def attempt(capacity: Capacity, *, to_claim: float) -> float:
        plan = book.plan(capacity)
        book.seconds += to_claim
        book.report(plan, LOST, attempt_id=book.claim(plan), startup_seconds=50, **measured(10, 10.0))
        return situation(book.spec, book.history, now=book.now).to_on_demand_seconds

    assert situation(book.spec, book.history, now=book.now).to_on_demand_seconds == 1.5 * 60
    assert attempt(Capacity.SPOT, to_claim=50) == 1.5 * 100  # Spot starts more slowly than was said.
    assert attempt(Capacity.ON_DEMAND, to_claim=60) == 1.1 * 110
    assert attempt(Capacity.ON_DEMAND, to_claim=10) == 1.1 * 110
    for _ in range(3):
        longest = attempt(Capacity.ON_DEMAND, to_claim=20)
    assert longest == 1.1 * 70
    assert attempt(Capacity.SPOT, to_claim=900) == 950  # A wait, or a slow start: it counts as it was.


@pytest.mark.parametrize("capacity", [Capacity.SPOT, Capacity.ON_DEMAND])
def test_planned_ends_on_the_same_machine_do_not_make_the_next_machine_start_sooner(capacity):
    book = Logbook(make_spec(segment={"steps": 10}, policy={"changeover_seconds": 60, "max_lost_in_place": 99}))

    def attempt(reason: StopReason, *, to_claim: float, commit: int) -> float:
        plan = book.plan(capacity)
        assert plan.keeps_machine
        book.seconds += to_claim
        name = book.claim(plan)
        book.commit(name, commit)
        book.report(plan, reason, attempt_id=name, to_step=commit, startup_seconds=5, **measured(10, 10.0))
        here = situation(book.spec, book.history, now=book.now)
        return here.to_on_demand_seconds if capacity is Capacity.ON_DEMAND else here.changeover_seconds

    factor = 1.1 if capacity is Capacity.ON_DEMAND else 1.0
    assert attempt(BOUND, to_claim=295, commit=10) == factor * 300
    for commit in (20, 30, 40, 50):
        assert attempt(BOUND, to_claim=1, commit=commit) == factor * 300
    book.not_started(capacity)  # The machine is gone.
    attempt(BOUND, to_claim=95, commit=55)
    for commit in (56, 57, 58):
        assert attempt(BOUND, to_claim=1, commit=commit) == factor * 300
    attempt(LOST, to_claim=1, commit=59)
    assert attempt(LOST, to_claim=395, commit=60) == factor * 400, "a machine of its own again"
    attempt(LOST, to_claim=95, commit=65)
    assert attempt(LOST, to_claim=95, commit=68) == factor * 400
    assert attempt(LOST, to_claim=95, commit=69) == factor * 100


def test_a_claim_without_a_way_does_not_make_all_ways_short():
    book = Logbook(make_spec(policy={"changeover_seconds": 60, "max_lost_in_place": 99}))
    for to_claim in (0, 600, 600, 600):
        plan = book.plan()
        book.seconds += to_claim
        book.report(plan, LOST, attempt_id=book.claim(plan), startup_seconds=50, **measured(10, 10.0))
    here = situation(book.spec, book.history, now=book.now)
    assert (here.changeover_seconds, here.expected_changeover_seconds) == (650, 650)


def test_the_usual_changeover_is_a_median_with_the_prior_among_them():
    book = Logbook(make_spec(policy={"changeover_seconds": 60, "max_lost_in_place": 99}))
    usual = []
    for boot in (20, 20, 900, 15, 15, 900):
        usual.append(situation(book.spec, book.history, now=book.now).expected_changeover_seconds)
        plan = book.plan(Capacity.ON_DEMAND)
        book.seconds += boot
        book.report(plan, LOST, attempt_id=book.claim(plan), startup_seconds=5, **measured(1, 1.0))
    assert usual == [60, 60, 25, 60, 25, 25]
    here = situation(book.spec, book.history, now=book.now)
    assert (here.expected_changeover_seconds, here.changeover_seconds) == (60, 905)


def test_what_a_save_takes_is_a_median_and_unknown_in_older_logs():
    book = Logbook(make_spec(policy={"max_lost_in_place": 99}))
    book.attempt(LOST)
    assert save_seconds(book.history) is None
    for seconds in (4.0, 90.0, None, 6.0):
        book.attempt(LOST, save_seconds=seconds)
    assert save_seconds(book.history) == 6.0
    assert book.ask().numbers["save_seconds"] == 6.0


def test_a_report_written_before_saves_were_measured_is_still_read():
    book = Logbook(make_spec())
    report = book.attempt(LOST, save_seconds=3.0, save_cost_seconds=1.0)
    old = {name: value for name, value in report.model_dump(mode="json").items() if not name.startswith("save")}
    assert SegmentReport.model_validate(old).save_seconds is None


@pytest.mark.parametrize(
    ("checkpoints", "seconds"),
    [({"every_steps": 10}, 25.0), ({"every_seconds": 60}, 67.0), ({}, 602.0)],
)
def test_work_is_at_risk_until_the_next_commit_is_durable(checkpoints, seconds):
    spec = make_spec(checkpoints=checkpoints, continuity={"witness_steps": 0})
    assert at_risk_seconds(spec, 2.0, save_seconds=5.0) == seconds


@pytest.mark.parametrize(
    ("checkpoints", "witness", "rate", "seconds"),
    [
        ({"every_steps": 10}, 8, 2.0, 20.0),
        ({"every_steps": 10}, 8, None, 0.0),
        ({"every_seconds": 60}, 0, None, 60.0),
        ({"every_seconds": 60}, 0, 7.0, 67.0),
        ({}, 8, None, 600.0),
        ({"every_seconds": 60, "every_steps": 10}, 0, 2.0, 20.0),
        ({"every_seconds": 60, "every_steps": 100}, 0, 2.0, 62.0),
        ({"every_steps": 2}, 8, 2.0, 16.0),
        ({"every_seconds": 60}, 8, 30.0, 240.0),
    ],
)
def test_at_risk_is_the_longest_stretch_without_a_commit(checkpoints, witness, rate, seconds):
    spec = make_spec(checkpoints=checkpoints, continuity={"witness_steps": witness})
    assert at_risk_seconds(spec, rate) == seconds


def test_a_silent_death_is_noticed_within_the_heartbeat_timeout_unless_the_user_knows_better():
    liveness = {"heartbeat_timeout_seconds": 30, "heartbeat_seconds": 2}
    assert detection_seconds(make_spec(liveness=liveness)) == 32
    assert detection_seconds(make_spec(liveness=liveness, policy={"detection_seconds": 1})) == 1


def test_work_is_what_is_not_committed_yet_with_the_margin():
    book = Logbook(make_spec(deadline_in=1000, policy={"step_seconds": 2, "margin_share": 0.1}))
    book.attempt(LOST, commit=40)
    book.seconds = 100
    here = situation(book.spec, book.history, now=book.now)
    assert here.work_seconds == pytest.approx(60 * 2 * 1.1)
    assert (here.remaining_seconds, here.slack_seconds) == (900, pytest.approx(900 - 132))
    assert here.answer_seconds == 4


def test_the_last_save_belongs_to_the_answer_to_a_recall():
    book = Logbook(make_spec(deadline_in=1000, policy={"step_seconds": 2}))
    book.attempt(LOST, commit=40, save_seconds=7.0)
    here = situation(book.spec, book.history, now=book.now)
    assert here.answer_seconds == book.spec.liveness.heartbeat_seconds + 2 + 7


@pytest.mark.parametrize(("own", "work"), [(0.0, 210.0), (1.0, 210.0), (4.0, 420.0)])
def test_a_running_attempt_can_only_slow_the_estimate_down(own, work):
    spec = make_spec(policy={"step_seconds": 2})
    here = situation(spec, Logbook(spec).history, now=Logbook(spec).now, slowest_step_seconds=own)
    assert here.work_seconds == work


def test_without_a_deadline_or_a_rate_there_is_no_slack_to_speak_of():
    free, unmeasured = make_spec(policy={"step_seconds": 2}), make_spec(deadline_in=100)
    for spec in (free, unmeasured):
        here = situation(spec, Logbook(spec).history, now=Logbook(spec).now)
        assert here.slack_seconds is None
    assert here.probe_seconds == pytest.approx(10.0)


@dataclass(frozen=True)
class Ending:
    """What becomes of one spot attempt, each as a share of the longest that segue has to bear."""

    wait: float  # for capacity, of what the plan allows; above 1 it never comes
    boot: float  # of a changeover, until the claim
    startup: float  # of what is then left of the changeover, until the first step
    dies: float | None  # seconds after the claim; None: it lives
    warned: bool  # a notice comes first, and the last checkpoint fits
    detection: float  # of the longest time until a silent death is noticed
    answer: float  # of a heartbeat, until a recall is seen


class World:
    """A pure simulator: real decisions, spot by `fates`, on-demand that always comes and lives, but boots slowly.

    The longest changeover is `start_factor` times the one that the run is told.
    """

    def __init__(self, book: Logbook, fates: list[Ending], *, rate: float, start_factor: float = 1.0) -> None:
        self.book, self.fates, self.rate = book, fates, rate
        self.changeover = start_factor * book.spec.policy.changeover_seconds
        self.spot_attempts = 0

    def run(self) -> float:
        """Seconds after the start at which the goal is committed."""
        while (made := self.book.decide()).plan is not None:
            if made.plan.capacity is Capacity.SPOT:
                self.spot_attempts += 1
                self._spot(made.plan, self.fates[(self.spot_attempts - 1) % len(self.fates)])
            else:
                self.book.seconds += 1.0 if self._is_machine_kept(made.plan) else self.changeover
                self._work(made.plan, self.book.claim(made.plan), ends_at=None, ending=None, startup=0.0)
            assert self.spot_attempts < 500, "it went on for ever"
        assert made.action == "finished", made
        return self.book.seconds

    def _spot(self, plan: SegmentPlan, ending: Ending) -> None:
        book, changeover = self.book, self.changeover
        if self._is_machine_kept(plan):
            ending, changeover = replace(ending, wait=0.0), min(changeover, 1.0)
        to_claim = ending.wait * plan.start_within_seconds + ending.boot * changeover
        if to_claim > plan.start_within_seconds:
            book.seconds += plan.start_within_seconds
            book.report(plan, LOST, attempt_id=None)
            return
        book.seconds += to_claim
        ends_at = None if ending.dies is None else book.seconds + ending.dies
        startup = ending.startup * (1 - ending.boot) * changeover
        self._work(plan, book.claim(plan), ends_at=ends_at, ending=ending, startup=startup)

    def _is_machine_kept(self, plan: SegmentPlan) -> bool:
        """Whether the attempt goes on where the one before it has ended as planned."""
        last = self.book.history.fresh_reports[-1] if self.book.history.fresh_reports else None
        if last is None or last.stop_reason is not BOUND or last.capacity is not plan.capacity:
            return False
        before = self.book.history.decision_of(last.segment, last.attempt)
        return before.plan.keeps_machine

    def _work(
        self, plan: SegmentPlan, name: str, *, ends_at: float | None, ending: Ending | None, startup: float
    ) -> None:
        book, spec = self.book, self.book.spec
        start = saved = step = plan.parent.step if plan.parent else 0
        replay = spec.continuity.witness_steps if plan.parent else 0
        every, heard_at, safe_at = spec.checkpoints.every_steps, None, book.seconds + startup

        def end(reason: StopReason, at: float) -> None:
            book.seconds = at
            seconds = measured(step - start, (step - start) * self.rate)
            book.report(plan, reason, attempt_id=name, startup_seconds=startup, **seconds)

        while True:
            recall_at = self._recall_due_at() if ending else None
            if recall_at is not None and recall_at < safe_at and (ends_at is None or recall_at < ends_at):
                if step == start:
                    return end(LOST, max(recall_at, book.seconds))
                heard_at = heard_at or recall_at + ending.answer * spec.liveness.heartbeat_seconds
            if ends_at is not None and ends_at <= safe_at:
                if ending.warned and step > saved:
                    book.seconds = ends_at
                    book.commit(name, step)
                detection = 0.0 if ending.warned else ending.detection * spec.policy.detection_seconds
                return end(NOTICE if ending.warned else LOST, ends_at + detection)
            book.seconds = safe_at
            is_over = step in (spec.steps, plan.stop_at_step) or (heard_at is not None and heard_at <= safe_at)
            if is_over or (step // every > saved // every and step - start >= replay):
                if step > saved:
                    book.commit(name, step)
                    saved = step
                if is_over:
                    return end(FINISHED if step == spec.steps else BOUND, safe_at)
            step, safe_at = step + 1, safe_at + self.rate

    def _recall_due_at(self) -> float | None:
        here = situation(self.book.spec, self.book.history, now=self.book.now)
        if here.work_seconds is None:
            return None
        assert here.remaining_seconds is not None
        needed = here.work_seconds + here.to_on_demand_seconds + here.detection_seconds + here.answer_seconds
        due_in = here.remaining_seconds - needed
        assert clamp.must_recall(here) is (due_in < 0)
        return self.book.seconds + due_in


NEVER_COMES = Ending(wait=1.1, boot=0, startup=0, dies=None, warned=False, detection=1, answer=1)
DIES_AT_ONCE = Ending(wait=0, boot=1, startup=0, dies=0, warned=False, detection=1, answer=1)


@pytest.mark.parametrize("ending", [NEVER_COMES, DIES_AT_ONCE])
@pytest.mark.parametrize("hours", [1, 24])
def test_a_run_that_spot_never_lets_measure_its_steps_still_meets_a_deadline_with_room(ending, hours):
    policy = {"changeover_seconds": 60, "detection_seconds": 15}
    book = Logbook(make_spec(deadline_in=hours * 3600, policy=policy))
    world = World(book, [ending], rate=10.0)
    # 1000 s of work, a tenth of the time for probes, and the last of them overruns by what a death takes.
    assert world.run() <= 1000 + 0.1 * hours * 3600 + 3 * 60 + 15
    assert world.spot_attempts >= 1


share = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
fates = st.builds(
    Ending,
    wait=st.sampled_from([0.0, 0.5, 1.0, 1.1]),
    boot=share,
    startup=share,
    dies=st.none() | st.floats(0, 60) | st.floats(0, 400),
    warned=st.booleans(),
    detection=share,
    answer=share,
)


@st.composite
def runs(draw: st.DrawFn, start_factor: float = 1.0) -> tuple[Logbook, float]:
    rate = draw(st.sampled_from([0.5, 1.0, 7.0]))
    changeover = draw(st.sampled_from([0.0, 5.0, 60.0]))
    steps = draw(st.integers(1, 80))
    least = steps * rate + start_factor * changeover
    policy = {
        "step_seconds": rate,
        "changeover_seconds": changeover,
        "detection_seconds": draw(st.sampled_from([0.0, 15.0])),
        "margin_share": draw(st.sampled_from([0.0, 0.05])),
    }
    spec = make_spec(
        steps=steps,
        deadline_in=least * draw(st.sampled_from([1.0, 1.5, 2.5])) + draw(st.floats(0.001, 300)),
        checkpoints={"every_steps": draw(st.sampled_from([1, 5, 20]))},
        continuity={"witness_steps": draw(st.sampled_from([0, 8]))},
        liveness={"heartbeat_seconds": 2.0},
        policy=policy,
        segment={"steps": segment} if (segment := draw(st.sampled_from([0, 0, 7, 20]))) else {},
    )
    return Logbook(spec), rate


@pytest.mark.matrix
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(run=runs(), fates=st.lists(fates, min_size=1, max_size=6))
def test_a_deadline_that_on_demand_could_meet_from_the_start_is_met_whatever_spot_does(run, fates):
    book, rate = run
    took = World(book, fates, rate=rate).run()
    assert START + timedelta(seconds=took) <= book.spec.deadline + timedelta(microseconds=2)


@pytest.mark.matrix
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(run=runs(1.5), fates=st.lists(fates, min_size=1, max_size=6))
def test_it_is_met_although_every_start_takes_half_as_long_again_as_the_run_is_told(run, fates):
    book, rate = run
    took = World(book, fates, rate=rate, start_factor=1.5).run()
    assert START + timedelta(seconds=took) <= book.spec.deadline + timedelta(microseconds=2)
