"""`segue pools`: show what the runs of a store have observed on pools and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segue.cli.options import Endpoint, Json, Store, store_named, writing
from segue.clock import SystemClock
from segue.reports.console import console, show_json
from segue.reports.machine_views import machine_facts, machine_row
from segue.reports.tables import rows_table, without_empty_columns
from segue.runlog.open import read_store
from segue.runlog.pool_memory import read_memory


def pools(
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG file to write, with the availability of each pool over time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show each pool as the runs of a store have seen it: price, share of time up, mean life, mean wait, starts. Then
    show each machine: deaths, hangs, wrong numbers, failed checks, step time, and until when attempts avoid it.

    A new run of the store begins with these observations. The time up is measured only while a run trains or waits.
    """
    from segue.reports.pool_views import correlations, draw_pools, pool_facts, pool_row

    seen = read_store(store_named(store, endpoint_url=endpoint_url), read_memory)
    now = SystemClock().now()
    facts, pairs, machines = pool_facts(seen), correlations(seen), machine_facts(seen.machines, now=now)
    if picture is not None and seen.intervals:
        drawn = draw_pools(seen, now=now)
        with writing(picture):
            picture.write_bytes(drawn)
    if as_json:
        show_json({"store": store, "pools": facts, "correlations": pairs, "machines": machines})
    elif not facts and not machines:
        console.print(f"No run of {store} has been seen on a pool yet.", markup=False)
    else:
        console.print(rows_table([pool_row(each, now=now) for each in facts]))
        for pair in pairs:
            names, hours = " and ".join(pair["pools"]), pair["hours"]
            console.print(f"correlation of {names}: {pair['correlation']:.2f}, over {hours:.0f} h", markup=False)
        if machines:
            console.print("machines")
            console.print(rows_table(without_empty_columns([machine_row(each, now=now) for each in machines])))
        if picture is not None:
            console.print(f"picture: {picture}", markup=False)
