"""Figures with their limits, for people and for programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Figure(NamedTuple):
    """One measured value."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """Highest acceptable value, for a state of 5 GB."""

    @property
    def is_met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


def line_of(figure: Figure) -> str:
    """Print one figure as text."""
    limit = "" if figure.limit is None else f"<= {figure.limit:g} {figure.unit}"
    met = {True: "met", False: "missed", None: ""}[figure.is_met]
    return f"{figure.name:62s} {figure.value:9.4g} {figure.unit:8s} {limit:14s} {met}".rstrip()


def facts_of(device: torch.device, size_bytes: int) -> dict[str, Any]:
    """The hardware and software of the measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "size_bytes": size_bytes}
