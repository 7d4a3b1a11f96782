"""Decides how long an attempt and the run may take under the budget, and when the budget ends the run.

The budget is a cap and takes precedence over the deadline. If the budget does not pay for on-demand to the end, the run
continues on spot and ends late. The margin on the remaining work is part of the time estimate, but not of the cost
estimate. The module is pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.policy.pool_choice import PoolChoice, choose_pool, paid_per_hour_of_work, pools_of
from segue.policy.spending import HOUR, charges_of, month_of, priced_pools, read_cost
from segue.records import Capacity
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration, money

_SAVES_OF_AN_ATTEMPT = 3
"""Least number of steps and saves that an attempt must be able to make, so that its start is worth the cost."""

_END_SECONDS, _END_SHARE = 5.0, 0.05
"""Reserved time after the last commit for the end of an attempt, in seconds and as a share.

The smaller of the two values applies.
"""


@dataclass(frozen=True)
class Cap:
    """A cap of the budget, and the money spent under the cap."""

    limit: float
    spent: float
    whose: str
    """Description of the runs whose spending the cap limits."""
    renewed_in_seconds: float | None = None
    """Seconds until the spending under the cap restarts from zero. The value None means never."""

    @property
    def left(self) -> float:
        return self.limit - self.spent

    def affordable_seconds(self, price: float, *, start_cost: float = 0.0) -> float:
        """Return the seconds of a machine at this price per hour that the cap pays for, after the cost of its start."""
        seconds = max(self.left - start_cost, 0.0) / price * HOUR
        if self.renewed_in_seconds is None or seconds < self.renewed_in_seconds:
            return seconds
        return self.renewed_in_seconds + self.limit / price * HOUR


@dataclass(frozen=True)
class Purse:
    """All caps of a run's budget, and the expected cost of the rest of the run."""

    caps: tuple[Cap, ...]
    expected_cost: float | None
    """The expected cost from now to the goal. The value is None if no step has been measured yet."""
    currency: str = ""

    @property
    def tightest(self) -> Cap:
        return min(self.caps, key=lambda cap: cap.left)

    @property
    def left(self) -> float:
        return self.tightest.left

    def affordable_seconds(self, price: float, *, start_cost: float = 0.0) -> float:
        return min(cap.affordable_seconds(price, start_cost=start_cost) for cap in self.caps)

    def numbers(self) -> dict[str, float]:
        """The numbers of the budget that a decision records."""
        expected = {} if self.expected_cost is None else {"expected_cost": round(self.expected_cost, 6)}
        return {"budget_left": round(self.left, 6)} | expected

    def in_words(self) -> str:
        """The spent amount and its cap, in words."""
        cap = self.tightest
        limit = money(cap.limit, self.currency)
        return f"{money(cap.spent, self.currency)} of {limit} for {cap.whose} are spent"

    def shortage(self) -> str:
        """Describes the expected cost of the rest of the run, and the money left for it.

        The text is empty if the expected cost is not known yet.
        """
        if self.expected_cost is None:
            return ""
        return f"{self.money(self.expected_cost)} are expected for the rest, and {self.money(self.left)} are left"

    def money(self, amount: float) -> str:
        return money(amount, self.currency)


def purse_of(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> Purse | None:
    """Return the caps of a run's budget and the expected cost, or None if the run has no budget."""
    caps = caps_of(spec, history, now=now)
    return Purse(caps, expected_cost(spec, history, here, now=now), spec.pools.currency) if caps else None


def caps_of(spec: RunSpec, history: History, *, now: datetime, live_seconds: float = 0.0) -> tuple[Cap, ...]:
    """Return the caps of a run's budget with the money spent. The result is empty if the run has no budget.

    `live_seconds` is the number of seconds for which an attempt without a report has had its machine.
    """
    budget, known, month = spec.budget, history.spending, month_of(now, spec.budget.zone)
    charges = charges_of(spec, history, live_seconds=live_seconds)
    caps = []
    if budget.per_run is not None:
        standbys = known.standby_cost if known is not None else 0.0
        caps.append(Cap(budget.per_run, sum(charge.cost for charge in charges) + standbys, "the run"))
    if budget.per_month is not None:
        spent = sum(charge.cost_in(month) for charge in charges)
        if known is not None and known.month == month.name:
            spent += known.others_cost + known.standby_month_cost
        left_seconds = (month.ends_at - now).total_seconds()
        caps.append(Cap(budget.per_month, spent, f"all runs in {month.name}", renewed_in_seconds=left_seconds))
    return tuple(caps)


def expected_cost(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> float | None:
    """Return the expected cost of the rest of the run, or None if no step has been measured yet.

    With a deadline, the cost is the mean that PLAN expects over the possible futures of spot, even if another policy
    decides. Without a deadline, the cost is that of spot, including starts and lost work after preemptions.
    """
    if here.work_seconds is None:
        return None
    pools, alone = priced_pools(spec, history), _cost_alone(spec, history, here)
    if spec.policy.name == "on_demand_only" or pools.price_ratio <= 1 or not clamp.permits_spot(here):
        return alone
    if here.remaining_seconds is not None:
        share = _plan_share(spec, history, here, now=now)
        return alone if share is None else share * alone
    known = pools_of(pools, history, here, now=now)
    return min(paid_per_hour_of_work(pool, here=here) for pool in known) * _work_seconds(spec, here) / HOUR


def reason_to_end(
    spec: RunSpec, history: History, here: Situation, purse: Purse, *, price: float, start_cost: float = 0.0
) -> str | None:
    """Return the reason why the budget ends the run now.

    Return None if the budget pays for another attempt at this price per hour, and for the data of its start.
    """
    if not spec.budget.is_cap:
        return None
    needed = _needed_seconds(spec, history, here)
    end = _committed(spec, history)
    if purse.affordable_seconds(price, start_cost=start_cost) <= needed:
        cost = purse.money(needed * price / HOUR + start_cost)
        least = f"one more attempt takes {duration(needed)}, which cost {cost}"
        return f"the budget is used up: {purse.in_words()}, and {least}; {end}"
    expected = purse.expected_cost
    if spec.budget.on_exceeded != "refuse" or expected is None or _was_admitted(history) or expected <= purse.left:
        return None
    return f"refused: {purse.shortage()} ({purse.in_words()}); {end}"


def time_left_seconds(spec: RunSpec, history: History, *, now: datetime) -> float:
    """Return the seconds until `budget.max_hours` ends the run, or infinity without `budget.max_hours`."""
    if spec.budget.max_hours is None:
        return math.inf
    first = next((entry.written_at for entry in history.decisions if entry.action != "import"), now)
    return spec.budget.max_hours * HOUR - (now - first).total_seconds()


def reason_out_of_time(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> str | None:
    """Return the reason why `budget.max_hours` ends the run now, or None if time is left for another attempt."""
    needed, left = _needed_seconds(spec, history, here), time_left_seconds(spec, history, now=now)
    if left > needed + here.answer_seconds:
        return None
    passed = duration((spec.budget.max_hours or 0.0) * HOUR - left)
    limit = f"budget.max_hours = {spec.budget.max_hours:g}"
    least = f"{passed} have passed since the run began, and one more attempt takes {duration(needed)}"
    return f"the time of the run is used up ({limit}): {least}; {_committed(spec, history)}"


def warning_of(spec: RunSpec, purse: Purse) -> str:
    """Return a warning about the budget of a run that continues.

    The text is empty if there is no problem.
    """
    if purse.left <= 0:  # A cap would have ended the run.
        return f"the budget is exceeded: {purse.in_words()}"
    if purse.expected_cost is None or purse.expected_cost <= purse.left:
        return ""
    end = "will not last to the goal" if spec.budget.is_cap else "will be exceeded"
    return f"the budget {end}: {purse.shortage()}"


def forbids_on_demand(spec: RunSpec, history: History, here: Situation, purse: Purse) -> bool:
    """Whether the budget does not pay for the rest of the run on on-demand.

    If the result is True, the run does not use on-demand for its deadline or after a long wait for spot.
    """
    if not spec.budget.is_cap:
        return False
    if spec.deadline is not None:
        return purse.expected_cost is not None and purse.expected_cost > purse.left
    return here.work_seconds is not None and _cost_alone(spec, history, here) > purse.left


def on_demand_shortage(spec: RunSpec, history: History, here: Situation, purse: Purse) -> str:
    """Describe the cost of the rest of the run on on-demand, and the money left for it."""
    alone = purse.money(_cost_alone(spec, history, here))
    return f"the rest on on-demand costs {alone}, and {purse.money(purse.left)} are left"


def without_deadline(spec: RunSpec, here: Situation) -> tuple[RunSpec, Situation]:
    """Return the run spec and the situation without the deadline and without the limit of the wait for spot."""
    policy = spec.policy.model_copy(update={"max_wait_seconds": None})
    free = spec.model_copy(update={"deadline": None, "policy": policy})
    return free, replace(here, remaining_seconds=None, probe_seconds=None)


def bound_seconds(
    spec: RunSpec, purse: Purse | None, *, price: float, start_cost: float, history: History, now: datetime
) -> float | None:
    """Return the seconds that an attempt at this price per hour may run, even if its parent flow run dies.

    Return None if the budget does not limit the attempt.
    """
    seconds = time_left_seconds(spec, history, now=now)
    if purse is not None and spec.budget.is_cap:
        seconds = min(seconds, purse.affordable_seconds(price, start_cost=start_cost))
    # An attempt commits before its bound. The report and the end of the process come after the bound.
    return seconds - min(_END_SECONDS, _END_SHARE * seconds) if seconds < math.inf else None


def affordable_pools(
    spec: RunSpec, history: History, here: Situation, purse: Purse | None, pool: PoolChoice, *, now: datetime
) -> PoolChoice:
    """Limit the choice to one pool if the budget may not pay for requests on several pools.

    Requests on several pools may cost the rest of the run on the dearest pool, plus a boot on every other pool.

    The choice of the single pool compares the pools separately, so that a pool without capacity comes last.
    """
    if purse is None or not spec.budget.is_cap or not pool.requests:
        return pool
    listed = priced_pools(spec, history)
    dearest = max(listed.price(Capacity.SPOT, each.deployment) for each in pool.requests)
    boots = len(pool.requests) * here.changeover_seconds
    needed = math.inf if here.work_seconds is None else here.work_seconds + boots
    if purse.affordable_seconds(dearest) >= needed:
        return pool
    return replace(choose_pool(spec, history, here, now=now), requests=())


def _cost_alone(spec: RunSpec, history: History, here: Situation) -> float:
    """Return the cost of the rest of the run on on-demand alone."""
    seconds, pools = _work_seconds(spec, here) + here.expected_changeover_seconds, priced_pools(spec, history)
    read = read_cost(pools, history, Capacity.ON_DEMAND, pools.on_demand)
    return seconds * pools.on_demand_price / HOUR + read


def _work_seconds(spec: RunSpec, here: Situation) -> float:
    """Return the expected seconds of remaining work, without the margin for the deadline."""
    return (here.work_seconds or 0.0) / (1 + spec.policy.margin_share)


def _plan_share(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> float | None:
    from segue.policy.outlook import outlook  # Only here: it loads NumPy.

    if spec.policy.name != "plan":
        spec = spec.model_copy(update={"policy": spec.policy.model_copy(update={"name": "plan", "parameters": {}})})
    ahead = outlook(spec, history, here, now=now)
    return ahead.cost_share if ahead is not None else None


def _was_admitted(history: History) -> bool:
    """Whether the run has started an attempt with a known expected cost since a person last started the run."""
    since = takewhile(lambda entry: entry.plan is not None, reversed(history.decisions))
    return any("expected_cost" in entry.numbers for entry in since)


def _needed_seconds(spec: RunSpec, history: History, here: Situation) -> float:
    """Return the seconds of the shortest attempt that is worth its start."""
    step = _step_seconds(spec, history, here)
    return here.expected_changeover_seconds + _SAVES_OF_AN_ATTEMPT * ((here.save_seconds or 0.0) + step)


def _committed(spec: RunSpec, history: History) -> str:
    return f"step {history.committed_step} of {spec.steps} is committed{_deadline_lost(spec)}"


def _step_seconds(spec: RunSpec, history: History, here: Situation) -> float:
    left = spec.steps - history.committed_step
    return (here.work_seconds or 0.0) / max(left, 1)


def _deadline_lost(spec: RunSpec) -> str:
    return "" if spec.deadline is None else "; the budget wins over the deadline"
