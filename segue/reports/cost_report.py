"""Computes the cost of a run, and compares it with the cost of the same work on on-demand alone. The module is pure.

The numbers come from the log. Only the cost of standbys comes from the status objects of the standbys.

The paid time of an attempt is the time from the attempt's claim to its end, according to the attempt's report. The
provider also bills the boot before the claim, but no report measures the boot. The price of an attempt is the price at
the time of its decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import Field

from segue.policy.spending import HOUR, charges_of, pools_now, price_of, priced_pools
from segue.records import Capacity, SegmentReport, Value
from segue.reports.goodput import Goodput, goodput_of
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration, money

_SAME_SHARE = 0.005
"""The report shows savings below this share as no savings, because it would round them to 0%."""


class Live(NamedTuple):
    """The time and steps of the attempt that trains now, according to its newest heartbeat."""

    seconds: float = 0.0
    """Paid seconds since the attempt's claim."""
    step: int = 0
    """The newest global step of the attempt."""
    steps: int = 0
    """Number of steps that the attempt has made."""
    step_seconds: float | None = None


NOT_LIVE = Live()


class CostReport(Value):
    """The paid time and the cost of a run so far. The cost is in the currency of the run spec."""

    spot_seconds: float = Field(ge=0, description="Paid seconds on all spot pools, including the seconds of standbys.")
    on_demand_seconds: float = Field(ge=0, description="Paid seconds on on-demand pools.")
    standby_seconds: float = Field(0.0, ge=0, description="Paid seconds of standbys on spot pools.")
    cost: float = Field(ge=0, description="Cost of all paid seconds, at the prices of their pools.")
    transfer_cost: float = Field(
        0.0, ge=0, description="Part of the cost for data transfer between machines and store, if a pool has a price."
    )
    useful_seconds: float = Field(
        ge=0, description="Seconds that the completed steps would have taken without interruptions."
    )
    on_demand_cost: float | None = Field(
        None, description="Cost of the same steps on on-demand alone, including one start; None before the first step."
    )
    expected_share: float | None = Field(
        None, description="Expected cost in the first decision that has an estimate, as a share of the on-demand cost."
    )
    startup_seconds: float = Field(ge=0, description="Paid seconds before the first new step of each attempt.")
    lost_seconds: float = Field(ge=0, description="Training seconds of lost steps, which must be run again.")
    lost_cost: float = Field(ge=0, description="Cost of the lost steps, at the price of the pool that lost them.")
    waiting_seconds: float = Field(
        ge=0,
        description="Seconds of queue and boot: the sum of the times from each decision to the claim of the attempt.",
    )
    seconds_by_cause: dict[str, float] = Field(
        default_factory=dict,
        description="Paid seconds of the attempts that have ended and of standbys, by cause.",
    )
    preemptions: int = Field(ge=0, description="Number of spot attempts that lost their machine.")
    currency: str = ""
    has_own_prices: bool = Field(
        True, description="True if the run spec sets prices; otherwise the prices are segue's example values."
    )

    @property
    def paid_share(self) -> float | None:
        """The paid cost as a share of the cost of on-demand alone."""
        return self.cost / self.on_demand_cost if self.on_demand_cost else None

    @property
    def saved_share(self) -> float | None:
        return None if self.paid_share is None else 1 - self.paid_share

    @property
    def goodput(self) -> Goodput:
        return Goodput(self.seconds_by_cause)

    @property
    def sentence(self) -> str:
        """A text with the paid share. Before the first commit, the text is empty."""
        return "" if self.paid_share is None else f"paid {self.paid_share:.0%} of the cost of on-demand alone"

    @property
    def paid(self) -> str:
        """A text with the cost so far."""
        return money(self.cost, self.currency)

    @property
    def saved(self) -> str:
        """A text with the savings compared with on-demand alone. Before the first commit, the text is empty."""
        share = self.saved_share
        if share is None or self.on_demand_cost is None:
            return ""
        if abs(share) < _SAME_SHARE:
            return "saved nothing"
        amount = money(abs(self.on_demand_cost - self.cost), self.currency)
        return f"saved {amount} ({share:.0%})" if share > 0 else f"paid {amount} ({-share:.0%}) more"

    @property
    def comparison(self) -> str:
        """A text with the cost so far, compared with on-demand alone."""
        than = {"saved": "against", "paid": "than"}.get(self.saved.partition(" ")[0])
        return f"{self.paid}; {self.saved} {than} on-demand alone" if than else self.paid

    def rows(self) -> dict[str, str]:
        """Return the rows of the report as texts by name."""
        paid = f"{self.paid} for {duration(self.spot_seconds)} of spot"
        standbys = f" ({duration(self.standby_seconds)} of it for standbys)" if self.standby_seconds else ""
        data = f", {money(self.transfer_cost, self.currency)} of it for data" if self.transfer_cost else ""
        named = {"paid": f"{paid}{standbys} and {duration(self.on_demand_seconds)} of on-demand{data}"}
        if self.paid_share is not None and self.on_demand_cost is not None:
            named["on-demand alone"] = f"{money(self.on_demand_cost, self.currency)}; {self.saved}"
        if not self.has_own_prices:
            named["prices"] = (
                "segue's defaults, because the run spec has no prices: set spot_price and on_demand_price in [pools]"
            )
        if self.expected_share is not None:
            named["expected at first"] = f"{self.expected_share:.0%} of the cost of on-demand alone"
        lost = f"{duration(self.lost_seconds)} of work ({money(self.lost_cost, self.currency)})"
        named["preemptions"] = str(self.preemptions)
        named["lost"] = f"{lost}, and {duration(self.startup_seconds)} in starts"
        named["waited"] = duration(self.waiting_seconds)
        if self.goodput.sentence:
            named["goodput"] = self.goodput.sentence
        return named

    def numbers(self) -> dict[str, Any]:
        """Return the report as numbers by name, for JSON output."""
        shares = {"paid_share": self.paid_share, "saved_share": self.saved_share, "goodput": self.goodput.share}
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in self}
        rounded["seconds_by_cause"] = {cause: round(value, 3) for cause, value in self.seconds_by_cause.items()}
        return rounded | {name: None if value is None else round(value, 6) for name, value in shares.items()}


def cost_report(
    spec: RunSpec, history: History, *, live: Live = NOT_LIVE, standbys: Mapping[str, float] | None = None
) -> CostReport:
    """Compute the paid time and the cost of a run so far.

    `live` describes the attempt that trains now. `standbys` contains the seconds for which standbys held a machine, by
    pool, as `segue.controller.standbys.messages.held_by_standbys` returns them.
    """
    paid = _paid(history)
    charges = charges_of(spec, history, live_seconds=live.seconds)
    seconds = {capacity: sum(c.seconds for c in charges if c.capacity is capacity) for capacity in Capacity}
    held, pools = standbys or {}, pools_now(spec, history)
    seconds[Capacity.SPOT] += sum(held.values())
    cost = sum(charge.cost for charge in charges)
    cost += sum(spent * pools.price(Capacity.SPOT, deployment) for deployment, spent in held.items()) / HOUR
    rate = _step_seconds(paid, live)
    useful = _trained_steps(history, reached=live.step) * rate
    alone = (useful + _usual_start(paid, live)) * priced_pools(spec, history).on_demand_price
    return CostReport(
        spot_seconds=seconds[Capacity.SPOT],
        on_demand_seconds=seconds[Capacity.ON_DEMAND],
        standby_seconds=sum(held.values()),
        seconds_by_cause=dict(goodput_of(history, charges, standby_seconds=sum(held.values())).seconds),
        cost=cost,
        transfer_cost=sum(charge.transfer for charge in charges),
        useful_seconds=useful,
        on_demand_cost=alone / HOUR if useful else None,
        expected_share=next(
            (e.numbers["expected_cost_share"] for e in history.decisions if "expected_cost_share" in e.numbers), None
        ),
        startup_seconds=sum(report.startup_seconds for report in paid),
        lost_seconds=sum(report.lost_steps * rate for report in paid),
        lost_cost=sum(lost_cost(spec, history, report, step_seconds=rate) for report in paid),
        waiting_seconds=sum((end - begin).total_seconds() for begin, end in waits(history)),
        preemptions=sum(r.stop_reason.is_preemption and r.capacity is Capacity.SPOT for r in paid),
        currency=spec.pools.currency,
        has_own_prices=spec.pools.has_own_prices,
    )


def lost_cost(spec: RunSpec, history: History, report: SegmentReport, *, step_seconds: float) -> float:
    """Return the cost of the lost steps of an attempt, at the price of the attempt's pool."""
    return report.lost_steps * step_seconds * price_of(spec, history, report) / HOUR


def usual_step_seconds(history: History, live: Live = NOT_LIVE) -> float:
    """Return the mean seconds per step over all attempts of the run. If no step was measured yet, return 0."""
    return _step_seconds(_paid(history), live)


def _paid(history: History) -> list[SegmentReport]:
    return [report for report in history.last_reports() if report.got_capacity]


def _step_seconds(paid: list[SegmentReport], live: Live) -> float:
    steps = sum(report.train_steps for report in paid)
    seconds = sum(report.train_seconds for report in paid)
    if live.step_seconds is not None:
        steps, seconds = steps + live.steps, seconds + live.steps * live.step_seconds
    return seconds / steps if steps else 0.0


def _usual_start(paid: list[SegmentReport], live: Live) -> float:
    starts = [report.startup_seconds for report in paid if report.train_steps]
    if live.steps and live.step_seconds is not None:
        starts.append(max(live.seconds - live.steps * live.step_seconds, 0.0))
    return sum(starts) / max(len(starts), 1)


def _trained_steps(history: History, *, reached: int) -> int:
    imported = (c.manifest.step for c in history.checkpoints if c.manifest.origin is not None)
    return max(max(history.committed_step, reached) - max(imported, default=0), 0)


def waits(history: History) -> list[tuple[datetime, datetime]]:
    """Return the start and the end of each wait for capacity.

    A wait lasts from a decision to the claim of its attempt. If the attempt has no claim, the wait ends at the next
    decision.
    """
    found = []
    for entry in history.decisions:
        if entry.action != "run" or entry.plan is None:
            continue
        attempt = history.attempt_of(entry.plan.segment, entry.plan.attempt)
        later = (other.written_at for other in history.decisions if other.written_at > entry.written_at)
        until = attempt.claim.written_at if attempt is not None else next(later, entry.written_at)
        found.append((entry.written_at, max(until, entry.written_at)))
    return found
