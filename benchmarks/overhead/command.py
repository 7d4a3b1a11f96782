"""`python -m benchmarks overhead`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json

MOST = {
    ("recipe", "small_x_bare"): 1.06,
    ("recipe", "large_x_bare"): 1.01,
    ("session", "small_x_bare"): 1.04,
    ("session", "large_x_bare"): 1.01,
    ("recipe", "startup_seconds_beyond_bare"): 0.8,
    ("session", "startup_seconds_beyond_bare"): 0.8,
}


def overhead(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, every loop runs once.")] = 3,
    is_empty: Annotated[
        bool, typer.Option("--empty", help="Measure a step that does nothing: microseconds by part.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the time of a whole step under segue, including its data, divided by the time of the same step in a bare
    loop. Each loop is a separate process with one thread. Exit code 0: every figure is within its limit. 1: a figure is
    not.
    """
    from benchmarks.overhead.measure import measure

    leave_as_on_ctrl_c()
    if is_empty:
        _show_empty(as_json=as_json)
        return
    with progress() as say:
        found = measure(rounds, say=say)
    if as_json:
        show_json(found)
    else:
        for name in ("bare_loader", "recipe", "lightning", "accelerate", "bare", "session"):
            figures = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found[name].items())
            console.print(f"{name.replace('_', ' '):>12}  {figures}", markup=False)
    if any(found[name][key] > most for (name, key), most in MOST.items()):
        raise typer.Exit(1)


def _show_empty(*, as_json: bool) -> None:
    from benchmarks.overhead.empty import measure_empty
    from benchmarks.overhead.sampler import OTHER, PARTS, USER

    found = measure_empty()
    if as_json:
        show_json(found)
        return
    columns = [(loop, kind) for loop, by_kind in found.items() for kind in by_kind]
    console.print("microseconds of a step; " + ", ".join(f"{loop} ({kind})" for loop, kind in columns), markup=False)
    for part in (*PARTS, OTHER, USER):
        console.print(f"{part:>34}", *(f"{found[loop][kind].get(part, 0.0):8.1f}" for loop, kind in columns))
