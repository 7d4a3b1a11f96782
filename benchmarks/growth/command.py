"""`python -m benchmarks growth`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json


def growth(
    thorough: Annotated[bool, typer.Option("--thorough", help="Also the largest sizes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the cost of each operation at sizes from 1 to 100 times the smallest size, or to 1,000 times with
    --thorough.

    Exit code 0: no cost grows faster than linearly. 1: a cost does.
    """
    from benchmarks.growth.measure import MOST, measure

    leave_as_on_ctrl_c()
    with progress() as say:
        found = measure(largest=1000 if thorough else 100, say=say)
    if as_json:
        show_json({"growth": [each.facts() for each in found]})
    else:
        for each in found:
            points = ", ".join(f"{size:,}: {took:.3g} s" for size, took in zip(each.sizes, each.seconds, strict=True))
            console.print(f"{each.what}: exponent {each.exponent:.2f} ({points})", markup=False)
    if any(each.exponent > MOST for each in found):
        raise typer.Exit(1)
