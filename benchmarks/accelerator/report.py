"""Figures with their limits, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table


class Figure(NamedTuple):
    """One measured value."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """The most that it should be, for a state of 5 GB."""

    @property
    def is_met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


def table_of(figures: Sequence[Figure]) -> Table:
    """All of them, a row each."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("figure", "measured", "limit", ""):
        table.add_column(heading)
    for figure in figures:
        limit = "" if figure.limit is None else f"<= {figure.limit:g} {figure.unit}"
        met = {True: "met", False: "missed", None: ""}[figure.is_met]
        table.add_row(figure.name, f"{figure.value:.3g} {figure.unit}", limit, met)
    return table


def facts_of(device: torch.device, size_bytes: int) -> dict[str, Any]:
    """On what it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "size_bytes": size_bytes}
