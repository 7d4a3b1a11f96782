"""Adds up the cost of the runs of a store: by run, by slot of a retrained model, by calendar month.

The module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo

from segue.policy.spending import Charge, Month, months_of
from segue.records import Capacity
from segue.reports.goodput import charges_by_cause
from segue.runlog.history import History
from segue.units import duration, money

_SLOT = re.compile(r"(.+)-(\d{8}t\d{4})")


@dataclass(frozen=True)
class RunCharges:
    """All charges of one run."""

    run: str
    state: str
    currency: str
    charges: Sequence[Charge]
    history: History = field(default_factory=History, repr=False)

    def within(self, month: Month) -> RunCharges:
        """The charges of this run in one month."""
        inside = [part for charge in self.charges if (part := charge.within(month)).cost > 0]
        return replace(self, charges=inside)

    @property
    def causes(self) -> list[tuple[str, Charge]]:
        """The same charges with their causes."""
        return charges_by_cause(self.history, self.charges)

    @property
    def cost(self) -> float:
        return sum(charge.cost for charge in self.charges)


@dataclass(frozen=True)
class CostRow:
    """One line of a cost report: the line's name columns, and the charges that the line adds up."""

    names: dict[str, str | int]
    charges: Sequence[Charge] = field(repr=False)
    currency: str

    @property
    def cost(self) -> float:
        return sum(charge.cost for charge in self.charges)

    def seconds_on(self, capacity: Capacity) -> float:
        return sum(charge.seconds for charge in self.charges if charge.capacity is capacity)

    def row(self) -> dict[str, object]:
        """The line as texts, for a table."""
        times = {capacity.value: duration(self.seconds_on(capacity)) for capacity in Capacity}
        return {**self.names, **times, "cost": money(self.cost, self.currency)}

    def facts(self) -> dict[str, object]:
        """The line as numbers, for JSON output."""
        times = {f"{capacity.name.lower()}_seconds": round(self.seconds_on(capacity), 3) for capacity in Capacity}
        return {**self.names, **times, "cost": round(self.cost, 6), "currency": self.currency}


def by_run(runs: Iterable[RunCharges]) -> list[CostRow]:
    """A line for each run, in the order of their first attempts."""
    ordered = sorted(runs, key=lambda one: (not one.charges, [c.began_at for c in one.charges][:1], one.run))
    return [CostRow({"run": one.run, "state": one.state}, one.charges, one.currency) for one in ordered]


def by_slot(runs: Iterable[RunCharges]) -> list[CostRow]:
    """A line for each slot of each model, by scheduled time, and one line for all other runs.

    The run of a slot is recognized by its name: the model's name and the scheduled time in UTC.
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
        CostRow({"model": name, "slot": f"{due:%Y-%m-%d %H:%M}", "state": one.state}, one.charges, one.currency)
        for name, due, one in sorted(slots, key=lambda item: item[:2])
    ]
    for currency in dict.fromkeys(one.currency for one in others):
        of_it = [one for one in others if one.currency == currency]
        charges = [charge for one in of_it for charge in one.charges]
        rows.append(
            CostRow(
                {"model": "other runs", "slot": "-", "state": f"{len(of_it)} run{'s' if len(of_it) > 1 else ''}"},
                charges,
                currency,
            )
        )
    return rows


def by_month(runs: Iterable[RunCharges], zone: tzinfo) -> list[CostRow]:
    """A line for each calendar month, oldest first."""
    every = list(runs)
    rows = []
    for month in months_of((charge for one in every for charge in one.charges), zone):
        parts = [part for part in (one.within(month) for one in every) if part.charges]
        for currency in dict.fromkeys(part.currency for part in parts):
            of_it = [part for part in parts if part.currency == currency]
            charges = [charge for part in of_it for charge in part.charges]
            rows.append(CostRow({"month": month.name, "runs": len(of_it)}, charges, currency))
    return rows


def by_cause(charges: Iterable[tuple[str, Charge, str]]) -> list[CostRow]:
    """A line for each cause and currency, from charges with their cause and their currency, the largest cost first."""
    found: dict[tuple[str, str], list[Charge]] = {}
    for cause, charge, currency in charges:
        found.setdefault((cause, currency), []).append(charge)
    rows = [CostRow({"cause": cause}, each, currency) for (cause, currency), each in found.items()]
    return sorted(rows, key=lambda row: -row.cost)


def totals(rows: Iterable[CostRow]) -> dict[str, float]:
    """The sum of the costs by currency."""
    found: dict[str, float] = {}
    for row in rows:
        found[row.currency] = found.get(row.currency, 0.0) + row.cost
    return found


def slot_of(run: str) -> tuple[str, datetime] | None:
    """Return the model and the scheduled time of a slot's run. Return None for any other run."""
    found = _SLOT.fullmatch(run)
    try:
        return (found[1], datetime.strptime(found[2], "%Y%m%dt%H%M").replace(tzinfo=UTC)) if found else None
    except ValueError:
        return None  # The digits are not a valid time.
