"""`python -m benchmarks fencing`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json


def fencing(
    worlds: Annotated[int, typer.Option(min=1, help="Worlds to run; every second one is signed.")] = 10_000,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first world: the same seed is the same world.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run parents and attempts in random interleavings over a store whose answers may be wrong in one bit.

    In each world, live attempts are declared lost. In some worlds, the run is also deleted and begun again. No commit
    may be lost, incomplete, or counted twice, and no resume may skip the newest checkpoint. Exit code 0: no world has
    such a fault. 1: some worlds have a fault; their seeds are shown.
    """
    from benchmarks.fencing.worlds import run_worlds

    leave_as_on_ctrl_c()
    with progress() as say:
        found = run_worlds(worlds, first=first, say=say)
    if as_json:
        show_json(found)
    else:
        for name, value in found.items():
            console.print(f"{name.replace('_', ' '):>20}  {value}", markup=False)
    if found["faults"]:
        raise typer.Exit(1)
