"""Spot as an adversary against the real decisions of a run with several pools: no run misses a deadline that on-demand
alone would meet.

The world emulates what the parent of a run does between two decisions: it waits as long as the plan permits, recalls an
attempt as soon as the clamp requires it, and hands over to a standby when this is permitted. Everything else is as bad
as chance makes it: machines come at the last moment or not at all, boot for longer than expected, die silently just
before a commit, and standbys vanish. On-demand starts within the margin of the clamp, and does not die.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from segue.policy import clamp
from segue.policy.estimates import SEEN_START_FACTOR, UNSEEN_START_FACTOR, situation
from segue.policy.handover import is_worth_a_standby, may_hand_over, permits
from segue.records import Capacity, CheckpointRef, SegmentPlan, StopReason
from segue.runlog.entries import HandoverEntry
from tests.support.histories import Logbook, make_spec

STEP_SECONDS, STEPS, EVERY_STEPS = 10.0, 100, 10
CHANGEOVER_SECONDS = 60.0
RUNS = 100
POLICIES = ("plan", "greedy", "uniform_progress", "eager_progress", "slack_age", "spot_only", "threshold")


@dataclass
class Result:
    """How one run ended."""

    late_seconds: float
    attempts: int
    spot_seconds: float
    handovers: int
    pools: frozenset[str]


class AdversarialRun:
    """One run of 1,000 s of work, from its first decision to its end."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        names = [f"segment/spot-{number}" for number in range(self._random.choice([1, 2, 3, 3]))]
        spot = [{"deployment": name, "price": self._random.choice([0.5, 1.0, 1.5, 2.9])} for name in names]
        for pool in spot:
            pool["transfer_price_per_gb"] = self._random.choice([0.0, 0.5])
        policy = {"name": self._random.choice(POLICIES), "handover": self._random.random() < 0.8, "margin_share": 0}
        policy |= {"step_seconds": STEP_SECONDS, "changeover_seconds": CHANGEOVER_SECONDS, "detection_seconds": 15}
        policy |= {"max_lost_in_place": self._random.choice([2, 5, 50])}
        self._least = UNSEEN_START_FACTOR * CHANGEOVER_SECONDS + STEPS * STEP_SECONDS
        self._deadline = self._least + self._random.choice([0.0, 187.0, 188.0, 250.0, 400.0, 800.0, 1500.0, 4000.0])
        self.book = Logbook(
            make_spec(
                deadline_in=self._deadline,
                policy=policy,
                pools={"spot": spot, "on_demand_price": 3.0},
                steps=STEPS,
                liveness={"start_seconds": self._random.choice([30, 300, 1800])},
                checkpoints={"every_steps": EVERY_STEPS},
            )
        )
        self._on_demand_start = self._random.uniform(0.0, UNSEEN_START_FACTOR) * CHANGEOVER_SECONDS
        self._bad_luck = self._random.choice([0.0, 0.2, 0.6])
        self._spot_seconds, self._attempts, self._handovers = 0.0, 0, 0
        self._used: set[str] = set()

    def to_the_end(self) -> Result:
        while True:
            decision = self.book.decide()
            if decision.action != "run":
                assert decision.action == "finished", decision
                break
            assert decision.plan is not None
            self._attempts += 1
            assert self._attempts < 200
            self.book.seconds += decision.plan.delay_seconds
            if decision.plan.capacity is Capacity.ON_DEMAND:
                self._on_demand(decision.plan)
            else:
                self._spot(decision.plan)
        late = self.book.seconds - self._deadline
        return Result(late, self._attempts, self._spot_seconds, self._handovers, frozenset(self._used))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _spot(self, plan: SegmentPlan) -> None:
        wait = plan.start_within_seconds or 0.0
        if self._chance(self._bad_luck):
            self.book.seconds += max(wait - plan.delay_seconds, 0.0)
            self.book.report(plan, StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)
            return
        # Of the pools that were asked by then, any may come first.
        asked_at = self._random.choice([0.0, self._random.uniform(0.0, wait), wait])
        asked = [each.deployment for each in plan.pools if each.after_seconds <= asked_at] or [plan.deployment]
        self.book.seconds += max(asked_at - plan.delay_seconds, 0.0)
        pool = self._random.choice(asked)
        self._used.add(pool)
        self._train(plan, boot=self._random.choice([0.0, 30.0, 60.0, 600.0, 1e9]), deployment=pool)

    def _on_demand(self, plan: SegmentPlan) -> None:
        self.book.seconds += self._on_demand_start
        self._on_demand_start *= self._random.uniform(0.5, SEEN_START_FACTOR)
        self._train(plan, boot=0.0, deployment=plan.deployment)

    def _train(self, plan: SegmentPlan, *, boot: float, deployment: str) -> None:
        """Train until the goal, a planned end, a recall or a death, whichever comes first."""
        book, on_spot = self.book, plan.capacity is Capacity.SPOT
        begun = book.seconds
        name = book.claim(plan, deployment=deployment)
        dies_at = begun + self._random.expovariate(1 / 600.0) if on_spot and self._chance(0.8) else float("inf")
        first_step_at = begun + boot
        recall_at = self._recall_at()
        if min(recall_at, dies_at) <= first_step_at:
            if dies_at < recall_at:
                self._end(plan, name, begun, StopReason.LOST, at=dies_at + book.spec.policy.detection_seconds)
            else:
                self._end(plan, name, begun, StopReason.LOST, at=recall_at)
            return
        book.seconds, step = first_step_at, book.history.committed_step
        ends_at = book.seconds + plan.max_seconds if plan.max_seconds is not None else float("inf")
        while step < STEPS:
            next_step = min((step // EVERY_STEPS + 1) * EVERY_STEPS, STEPS)
            commits_at = book.seconds + (next_step - step) * STEP_SECONDS
            handed = self._hands_over(plan, step)
            recall_at = book.seconds if handed else self._recall_at()
            if min(dies_at, recall_at, ends_at) < commits_at and next_step < STEPS + 1:
                self._end_early(plan, name, begun, first_step_at, step, times=(dies_at, recall_at, ends_at))
                return
            book.seconds = commits_at
            book.commit(name, next_step, size_bytes=self._random.choice([10**6, 10**9]))
            step = next_step
        self._end(plan, name, begun, StopReason.FINISHED, at=book.seconds, step=step, first_step_at=first_step_at)

    def _hands_over(self, plan: SegmentPlan, step: int) -> bool:
        """Whether a standby is ready now, and the attempt is recalled for it."""
        history, now = self.book.history, self.book.now
        here = situation(self.book.spec, history, now=now)
        can = may_hand_over(self.book.spec, history, plan) and permits(here) and is_worth_a_standby(here)
        if not can or step == 0 or not self._chance(0.1):
            return False
        facts = {"standby": f"spare{self._handovers}", "reason": "the standby is ready"}
        pool = self._random.choice(self.book.spec.pools.spot).deployment
        self.book.write(HandoverEntry, segment=plan.segment, attempt=plan.attempt, deployment=pool, **facts)
        self._handovers += 1
        return True

    def _end_early(
        self,
        plan: SegmentPlan,
        name: str,
        begun: float,
        first_step_at: float,
        step: int,
        *,
        times: tuple[float, float, float],
    ) -> None:
        """End an attempt between two commits, by its death, a recall or its planned end."""
        dies_at, recall_at, ends_at = times
        here = situation(self.book.spec, self.book.history, now=self.book.now)
        detection = self.book.spec.policy.detection_seconds
        facts = {"step": step, "first_step_at": first_step_at}
        if dies_at <= min(recall_at, ends_at):
            is_silent = self._chance(0.7)
            if not is_silent:
                self._commit_now(name, step, at=dies_at)
            reason, at = (StopReason.LOST, dies_at + detection) if is_silent else (StopReason.NOTICE, dies_at)
            self._end(plan, name, begun, reason, at=at, **facts)
            return
        at = min(recall_at, ends_at) + self._random.choice([0.0, 0.5, 1.0]) * here.answer_seconds
        if plan.capacity is Capacity.SPOT and self._chance(0.4):
            self._end(plan, name, begun, StopReason.LOST, at=at + detection, **facts)
            return
        self._commit_now(name, step, at=at)
        self._end(plan, name, begun, StopReason.BOUND, at=at, **facts)

    def _commit_now(self, name: str, step: int, *, at: float) -> CheckpointRef | None:
        done = min(step + int(max(at - self.book.seconds, 0.0) // STEP_SECONDS), STEPS - 1)
        self.book.seconds = at
        return self.book.commit(name, done) if done > step else None

    def _end(
        self,
        plan: SegmentPlan,
        name: str,
        begun: float,
        reason: StopReason,
        *,
        at: float,
        step: int = 0,
        first_step_at: float | None = None,
    ) -> None:
        self.book.seconds = max(at, self.book.seconds)
        trained = max(self.book.history.committed_step - (plan.parent.step if plan.parent else 0), 0)
        facts = {"to_step": max(step, self.book.history.committed_step), "seconds": self.book.seconds - begun}
        if first_step_at is not None and trained:
            facts |= {"train_steps": trained, "train_seconds": trained * STEP_SECONDS}
            facts |= {"startup_seconds": first_step_at - begun}
        if plan.capacity is Capacity.SPOT:
            self._spot_seconds += self.book.seconds - begun
        self.book.report(plan, reason, attempt_id=name, **facts)

    def _recall_at(self) -> float:
        """The moment at which the clamp recalls a spot attempt that commits nothing more."""
        if self.book.history.open_plan is None or self.book.history.open_plan.capacity is Capacity.ON_DEMAND:
            return float("inf")
        left = clamp.seconds_to_recall(situation(self.book.spec, self.book.history, now=self.book.now))
        return float("inf") if left is None else self.book.seconds + max(left, 0.0)


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(4))
def test_no_run_is_late_however_spot_behaves(part):
    found = [AdversarialRun(RUNS * part + number).to_the_end() for number in range(RUNS)]
    assert [number for number, result in enumerate(found) if result.late_seconds > 1e-6] == []
    # The adversary has something to do: runs train on spot, on several pools, and hand over.
    assert sum(result.spot_seconds > 0 for result in found) > RUNS / 2
    assert sum(len(result.pools) > 1 for result in found) >= 2
    assert sum(result.handovers for result in found) >= 2
