"""`segue costs`: show what the runs of a store have cost."""

from __future__ import annotations

import re
from datetime import tzinfo
from enum import StrEnum
from typing import Annotated, Any

import typer

from segue.cli.options import Endpoint, Json, Store
from segue.controller.costs.other_spending import charges_in_store
from segue.errors import COMMAND_LINE, OptionError
from segue.parsing import parsed
from segue.policy.spending import Month, month_named
from segue.reports.console import console, show_json
from segue.reports.spending_report import (
    RunCharges,
    by_cause,
    by_month,
    by_pool,
    by_run,
    by_slot,
    goodput_of_parts,
    totals,
)
from segue.reports.summary import state_of
from segue.reports.tables import rows_table
from segue.runlog.open import known_runs
from segue.spec import BudgetSpec, StoreSpec
from segue.units import money


class By(StrEnum):
    """The unit to which each line of the report refers."""

    RUN = "run"
    SLOT = "slot"
    POOL = "pool"
    MONTH = "month"
    CAUSE = "cause"


def costs(
    by: Annotated[
        By,
        typer.Option(
            help="One line per run, slot of a retrained model, pool, calendar month, or cause (training, lost work, "
            "...)."
        ),
    ] = By.RUN,
    month: Annotated[
        str | None, typer.Option(help="Calendar month of the costs, for example 2026-11; default: all months.")
    ] = None,
    time_zone: Annotated[str, typer.Option(help="Time zone in which months begin and end: Europe/Berlin.")] = "UTC",
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Show the costs of the runs of a store: time on spot, time on on-demand, money, and what trains now.

    The cost of an attempt is the time from its claim to its end, multiplied by the price in its decision.
    """
    zone = parsed(BudgetSpec, {"time_zone": time_zone}, source=COMMAND_LINE).zone
    only = None if month is None else _month(month, zone)
    found = _charges(StoreSpec.parse({"url": store, "endpoint_url": endpoint_url}, source=COMMAND_LINE), only)
    match by:
        case By.RUN:
            rows = by_run(found)
        case By.SLOT:
            rows = by_slot(found)
        case By.MONTH:
            rows = by_month(found, zone)
        case By.CAUSE:
            rows = by_cause(found)
        case By.POOL:
            rows = by_pool(found)
    sums, goodput = totals(rows), goodput_of_parts(part for row in rows for part in row.parts)
    if as_json:
        facts: dict[str, Any] = {"store": store, "by": by.value, "month": month, "time_zone": time_zone}
        lines = [row.facts() for row in rows]
        facts |= {"rows": lines, "totals": {name: round(cost, 6) for name, cost in sums.items()}}
        show_json(facts | {"goodput": None if goodput is None else round(goodput, 4)})
        return
    if not rows:
        console.print(f"There are no costs in {store}.", markup=False)
        return
    console.print(rows_table([row.row() for row in rows]))
    total = " and ".join(money(cost, currency) for currency, cost in sums.items())
    trained = "" if goodput is None else f"; goodput {goodput:.0%}"
    console.print(f"total{'' if month is None else f' of {month}'}: {total}{trained}", markup=False)


def _charges(store: StoreSpec, only: Month | None) -> list[RunCharges]:
    found = []
    for runlog, history in known_runs(store):
        if history.spec is None:
            continue
        charges = charges_in_store(runlog, history)
        found.append(RunCharges(runlog.run_id, state_of(history), history.spec.pools.currency, charges, history))
    if only is None:
        return found
    return [part for part in (one.within(only) for one in found) if part.charges]


def _month(text: str, zone: tzinfo) -> Month:
    found = re.fullmatch(r"(\d{4})-(\d{2})", text)
    if found is None or not 1 <= int(found[2]) <= 12 or not 1 <= int(found[1]) < 9999:
        raise OptionError(f"--month: must be a month (got {text!r}); example: 2026-11")
    return month_named(int(found[1]), int(found[2]), zone)
