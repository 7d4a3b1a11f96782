"""Solves PLAN's dynamic programme: computes the cheapest choice in every state, backwards from the deadline.

The module is pure. A state consists of the remaining time R, the slack S = R - C, the mode, and the spot state x. The
spot state is up or down, with one of eight ages. V is the expected cost. In a step of length h,

    idle:       E V(R-h, S-h, idle, x')
    spot:       c + E V(R-h, S - d if it starts, spot while x' is up, else idle less the lost work, x')
    on-demand:  k c + E V(R-h, S - d if it starts, on-demand, x')
    hand-over:  c + k d + E V(R-h, S, spot or, if the standby dies as it boots, on-demand, x')

V = 0 if S >= R, because no work is left. A start subtracts its changeover d from the slack at once. The cost of a
choice that the safety clamp forbids is infinite. Between two points of the grid, V is linear in S.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segue.policy.rules.hazards import AGE_EDGES_SECONDS, BINS, DOWN_RATES, UP_RATES, age_bin
from segue.policy.rules.sentinel import SENTINEL_SECONDS
from segue.policy.rules.view import IDLE, ON_DEMAND, SPOT, Floats, Job, View, Wishes

UP, DOWN = slice(0, BINS), slice(BINS, 2 * BINS)
_IDLE, _SPOT, _ON_DEMAND = slice(0, 16), slice(16, 24), slice(24, 40)
_FIRST_ROW = np.array([0, 16, 24])
_CHECKED = np.array([1.0, 1.0, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25])
"""Number of sentinel starts per ten minutes while spot is up and unused, by the age of the up interval.

The pauses before the starts are 10, 20, 40 and 40 minutes.
"""


@dataclass(frozen=True)
class Table:
    """The cheapest choice and its expected cost for each grid point of remaining time and slack."""

    step_seconds: float
    """Seconds between two grid points of remaining time."""
    slack_step_seconds: float
    horizon_seconds: float
    """The longest remaining time in seconds that the grid contains.

    For a run with more remaining time than the horizon, the table subtracts the excess from the slack.
    """
    wishes: NDArray[np.int8]
    """The cheapest choices: an array of shape (steps of remaining time, mode and state of spot, steps of slack)."""
    costs: Floats
    """The expected cost in spot seconds from the horizon to the goal, by mode and state of spot, and by slack."""

    def wish(self, view: View) -> Wishes:
        """Return the cheapest choice for each run of a view."""
        return self.wishes[self._at(view)]

    def cost(self, view: View) -> Floats:
        """Return the expected cost to the goal in spot seconds, if the remaining time is at least the horizon.

        The precision of the cost depends on the grid.
        """
        _, row, slack = self._at(view)
        return self.costs[row, slack]

    def _at(self, view: View) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        steps, _, slacks = self.wishes.shape
        beyond = np.maximum(view.remaining_seconds - self.horizon_seconds, 0.0)
        left = np.clip(np.rint((view.remaining_seconds - beyond) / self.step_seconds).astype(np.intp), 0, steps - 1)
        slack = np.clip(((view.slack_seconds - beyond) / self.slack_step_seconds + 0.5).astype(np.intp), 0, slacks - 1)
        spot = np.where(view.is_up, 0, BINS) + age_bin(view.age_seconds)
        row = np.where(view.mode == SPOT, spot % BINS, spot)
        return left, _FIRST_ROW[view.mode] + row, slack


def solve(
    job: Job, *, step_seconds: float, slack_step_seconds: float, up_factor: float = 1.0, down_factor: float = 1.0
) -> Table:
    """Return the table for a job, whose hazards are the published hazards multiplied by the given factors.

    Time and memory grow with the number of cells: steps of remaining time multiplied by steps of slack. A table of 400
    times 100 steps takes 0.1 s.
    """
    chances = moves(step_seconds, up_factor=up_factor, down_factor=down_factor)
    step = _Step(job, step_seconds, slack_step_seconds, chances)
    count = int(np.ceil(job.total_seconds / step_seconds)) + 1
    slacks = int(np.ceil(max(job.total_seconds - job.work_seconds, 0.0) / slack_step_seconds)) + 2
    value = np.zeros((_ON_DEMAND.stop, slacks))
    slack: Floats = np.arange(slacks, dtype=float) * slack_step_seconds
    wishes = np.empty((count, len(value), slacks), np.int8)
    for left in range(count):
        if left:
            value, wishes[left] = step.back(value, left * step_seconds, slack)
        else:
            wishes[left] = ON_DEMAND
    return Table(step_seconds, slack_step_seconds, job.total_seconds, wishes, value)


def moves(step_seconds: float, *, up_factor: float, down_factor: float) -> Floats:
    """Return the transition probabilities of the spot state in one step, as an array of shape (16, 16).

    The first eight states are up intervals by age, and the next eight states are down intervals by age.
    """
    widths = np.diff(np.concatenate([[0.0], AGE_EDGES_SECONDS]))
    ages = np.concatenate([np.minimum(step_seconds / widths, 1.0), [0.0]])
    chances = np.zeros((2 * BINS, 2 * BINS))
    for here, there, rates in ((0, BINS, UP_RATES * up_factor), (BINS, 0, DOWN_RATES * down_factor)):
        ends = -np.expm1(-rates * step_seconds)
        for age in range(BINS):
            chances[here + age, there] = ends[age]
            chances[here + age, here + age] = (1 - ends[age]) * (1 - ages[age])
            if age + 1 < BINS:
                chances[here + age, here + age + 1] = (1 - ends[age]) * ages[age]
    return chances


class _Step:
    """Computes one step back in time of the dynamic programme.

    A boot may last several steps. The class then reads the outcome of the boot from a row that is as many steps later.
    """

    def __init__(self, job: Job, step_seconds: float, slack_step_seconds: float, chances: Floats) -> None:
        self._job, self._seconds, self._slack_step, self._chances = job, step_seconds, slack_step_seconds, chances
        self._boot_steps = max(math.ceil(job.changeover_seconds / step_seconds - 1e-9), 1)
        self._later: deque[Floats] = deque(maxlen=self._boot_steps)

    def back(self, later: Floats, remaining: float, slack: Floats) -> tuple[Floats, NDArray[np.int8]]:
        self._later.appendleft(later)
        job, chances, k = self._job, self._chances, self._job.price_ratio
        work = np.maximum(remaining - slack, 0.0)
        paid = np.minimum(work, self._seconds)
        idle = self._less_slack(_expected(chances, later[_IDLE]), self._seconds)
        idle[:, slack - self._seconds < job.changeover_seconds] = np.inf
        gone = self._less_slack(later[_IDLE][DOWN], job.lost_by_a_death_seconds)
        stay = paid + _expected(chances[UP, UP], later[_SPOT]) + _expected(chances[UP, DOWN], gone)
        stay[:, slack < job.changeover_seconds] = np.inf
        start = self._boot(work, slack, standby=False)
        move = self._boot(work, slack, standby=True) if job.handover else start
        on_demand = k * paid + _expected(chances, later[_ON_DEMAND])
        begin = self._less_slack(on_demand, job.changeover_seconds)
        if job.knowledge == "sentinel":
            looks = np.minimum(_CHECKED * self._seconds / 600.0, 1.0) * SENTINEL_SECONDS
            is_worth_it = (slack >= job.changeover_seconds) & (work > 2 * job.changeover_seconds)
            on_demand[UP] += looks[:, None] * is_worth_it
        never = np.full_like(stay, np.inf)
        if not job.may_return:  # On-demand does the rest.
            back = (np.full_like(idle, np.inf), np.concatenate([never, never]))
        else:
            # With hand-over, a run leaves on-demand only for a standby that is ready, never to wait for spot.
            back = (np.full_like(idle, np.inf) if job.handover else idle, np.concatenate([move, never]))
        blocks = (
            (idle, np.concatenate([start, never]), begin),
            (idle[UP], stay, begin[UP]),
            (*back, on_demand),
        )
        value, wish = np.empty_like(later), np.empty(later.shape, np.int8)
        for rows, choices in zip((_IDLE, _SPOT, _ON_DEMAND), blocks, strict=True):
            value[rows], wish[rows] = _least(*choices)
        is_done = slack >= remaining
        value[:, is_done] = 0.0
        wish[_IDLE, is_done] = SPOT  # Less than half a step of work: nothing to plan.
        return value, wish

    def _boot(self, work: Floats, slack: Floats, *, standby: bool) -> Floats:
        """Return the value of starting a spot machine, which may die while it boots.

        A standby boots while on-demand works.
        """
        job, chances, length = self._job, self._chances, self._seconds
        value = np.zeros((BINS, len(slack)))
        alive = np.eye(BINS)
        left = job.changeover_seconds
        for at in range(self._boot_steps):
            later = self._later[min(at, len(self._later) - 1)]
            booting = min(left, length)
            left -= booting
            paid = np.clip(work - at * length, 0.0, length) if standby else np.minimum(work + booting, length)
            if standby:
                paid = paid + job.price_ratio * np.minimum(paid, booting)
            # If a standby dies during its boot, on-demand keeps working. A standby that took over is an ordinary
            # attempt.
            gone = later[_ON_DEMAND][DOWN] if standby and left > 0 else later[_IDLE][DOWN]
            if not standby:
                gone = self._less_slack(gone, (at + 1) * length if left > 0 else job.changeover_seconds)
            value += alive.sum(axis=1)[:, None] * paid + _expected(alive @ chances[UP, DOWN], gone)
            alive = alive @ chances[UP, UP]
        then = self._later[-1][_SPOT]
        value += _expected(alive, then if standby else self._less_slack(then, job.changeover_seconds))
        value[:, slack < (1 if standby else 2) * job.changeover_seconds] = np.inf
        return value

    def _less_slack(self, value: Floats, seconds: float) -> Floats:
        """Return the values of the states after a choice that costs `seconds` of slack."""
        whole, part = divmod(seconds / self._slack_step, 1.0)
        near = shifted(value, int(whole))
        if part < 1e-9:
            return near
        far = shifted(value, int(whole) + 1)
        return np.where(np.isfinite(far), (1 - part) * near + part * far, near)


def _expected(chances: Floats, value: Floats) -> Floats:
    # Infinity times zero is not a number, so a large cost represents an impossible choice.
    return chances @ np.minimum(value, 1e12)


def shifted(value: Floats, by: int, *, otherwise: float = np.inf) -> Floats:
    """Return the values shifted by `by` steps of slack on the last axis.

    The value is `otherwise` for a state whose slack is less than `by` steps.
    """
    moved = np.full_like(value, otherwise)
    size = value.shape[-1]
    if by < size:
        moved[..., by:] = value[..., : size - by]
    return moved


def _least(idle: Floats, spot: Floats, on_demand: Floats) -> tuple[Floats, NDArray[np.int8]]:
    value, wish = on_demand, np.full(on_demand.shape, ON_DEMAND)
    for mode, other in ((IDLE, idle), (SPOT, spot)):
        better = other < value
        value, wish = np.where(better, other, value), np.where(better, mode, wish)
    return value, wish
