"""Adds up the cost of the runs of a store: by run, slot of a retrained model, pool, calendar month, or cause.

The module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from segue.policy.spending import LIVE, Charge, Month, months_of
from segue.records import Capacity
from segue.reports.goodput import Goodput, charges_by_cause, total
from segue.runlog.history import History
from segue.units import duration, money

_SLOT = re.compile(r"(.+)-(\d{8}t\d{4})")


class Part(NamedTuple):
    """A part of a charge of a run, with the cause of this part."""

    cause: str
    charge: Charge
    currency: str


@dataclass(frozen=True)
class RunCharges:
    """All charges of one run."""

    run: str
    state: str
    currency: str
    charges: Sequence[Charge]
    history: History = field(default_factory=History, repr=False)

    def within(self, month: Month) -> RunCharges:
        """Return the charges of this run in one month."""
        inside = [part for charge in self.charges if (part := charge.within(month)).cost > 0]
        return replace(self, charges=inside)

    @property
    def parts(self) -> list[Part]:
        """The charges of this run, divided by cause."""
        return [Part(cause, charge, self.currency) for cause, charge in charges_by_cause(self.history, self.charges)]


@dataclass(frozen=True)
class CostRow:
    """One line of a cost report: its names, and the parts of charges that the line adds up."""

    names: Mapping[str, str | int]
    parts: Sequence[Part] = field(repr=False)
    currency: str

    @property
    def cost(self) -> float:
        return sum(part.charge.cost for part in self.parts)

    @property
    def goodput(self) -> float | None:
        """The goodput of attempts that have ended. If no attempt has ended, the value is None."""
        return goodput_of_parts(self.parts)

    def seconds_on(self, capacity: Capacity) -> float:
        return sum(part.charge.seconds for part in self.parts if part.charge.capacity is capacity)

    def row(self) -> dict[str, object]:
        """Return the line as texts, for a table."""
        times = {capacity.value: duration(self.seconds_on(capacity)) for capacity in Capacity}
        row: dict[str, object] = {**self.names, **times, "cost": money(self.cost, self.currency)}
        return row if "cause" in row else row | {"goodput": "-" if self.goodput is None else f"{self.goodput:.0%}"}

    def facts(self) -> dict[str, object]:
        """Return the line as numbers, for JSON output."""
        times = {f"{capacity.name.lower()}_seconds": round(self.seconds_on(capacity), 3) for capacity in Capacity}
        row: dict[str, object] = {**self.names, **times, "cost": round(self.cost, 6), "currency": self.currency}
        goodput = None if self.goodput is None else round(self.goodput, 4)
        return row if "cause" in row else row | {"goodput": goodput}


def goodput_of_parts(parts: Iterable[Part]) -> float | None:
    """Return the goodput of the attempts that have ended. If no attempt has ended, return None."""
    ended = [part for part in parts if part.cause != LIVE]
    is_known = any(part.charge.report is not None for part in ended)
    return total(Goodput({part.cause: part.charge.seconds}) for part in ended).share if is_known else None


def by_run(runs: Iterable[RunCharges]) -> list[CostRow]:
    """Return a line for each run, in the order of the runs' first attempts."""
    ordered = sorted(runs, key=lambda one: (not one.charges, [c.began_at for c in one.charges][:1], one.run))
    return [CostRow({"run": one.run, "state": one.state}, one.parts, one.currency) for one in ordered]


def by_slot(runs: Iterable[RunCharges]) -> list[CostRow]:
    """Return a line for each slot of each model, by scheduled time, and one line for all other runs.

    The name of a slot's run consists of the model's name and the scheduled time in UTC.
    """
    slots: list[tuple[str, datetime, RunCharges]] = []
    others: list[RunCharges] = []
    for one in runs:
        slot = slot_of(one.run)
        if slot is None:
            others.append(one)
        else:
            slots.append((*slot, one))
    rows = [
        CostRow({"model": name, "slot": f"{due:%Y-%m-%d %H:%M}", "state": one.state}, one.parts, one.currency)
        for name, due, one in sorted(slots, key=lambda item: item[:2])
    ]
    for currency in dict.fromkeys(one.currency for one in others):
        of_it = [one for one in others if one.currency == currency]
        names = {"model": "other runs", "slot": "-", "state": f"{len(of_it)} run{'s' if len(of_it) > 1 else ''}"}
        rows.append(CostRow(names, [part for one in of_it for part in one.parts], currency))
    return rows


def by_month(runs: Iterable[RunCharges], zone: tzinfo) -> list[CostRow]:
    """Return a line for each calendar month, oldest first."""
    every = list(runs)
    rows = []
    for month in months_of((charge for one in every for charge in one.charges), zone):
        inside = [one for one in (run.within(month) for run in every) if one.charges]
        for currency in dict.fromkeys(one.currency for one in inside):
            of_it = [one for one in inside if one.currency == currency]
            parts = [part for one in of_it for part in one.parts]
            rows.append(CostRow({"month": month.name, "runs": len(of_it)}, parts, currency))
    return rows


def by_cause(runs: Iterable[RunCharges]) -> list[CostRow]:
    """Return a line for each cause and currency, the largest cost first."""
    return _by("cause", lambda part: part.cause, runs)


def by_pool(runs: Iterable[RunCharges]) -> list[CostRow]:
    """Return a line for each pool and currency, the largest cost first."""
    return _by("pool", lambda part: part.charge.deployment, runs)


def _by(column: str, name: Callable[[Part], str], runs: Iterable[RunCharges]) -> list[CostRow]:
    found: dict[tuple[str, str], list[Part]] = {}
    for part in (part for one in runs for part in one.parts):
        found.setdefault((name(part), part.currency), []).append(part)
    rows = [CostRow({column: each}, parts, currency) for (each, currency), parts in found.items()]
    return sorted(rows, key=lambda row: -row.cost)


def totals(rows: Iterable[CostRow]) -> dict[str, float]:
    """Return the sum of the costs in each currency."""
    found: dict[str, float] = {}
    for row in rows:
        found[row.currency] = found.get(row.currency, 0.0) + row.cost
    return found


def slot_of(run: str) -> tuple[str, datetime] | None:
    """Return the model and the scheduled time of a slot's run. For any other run, return None."""
    found = _SLOT.fullmatch(run)
    try:
        return (found[1], datetime.strptime(found[2], "%Y%m%dt%H%M").replace(tzinfo=UTC)) if found else None
    except ValueError:
        return None  # The digits are not a valid time.
