"""A module that other scripts import: a global value and a meter."""

from __future__ import annotations

temperature = 1.0


class Meter:
    """The mean of the values that the meter got."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


meter = Meter()


def cooled() -> float:
    """The temperature, lower with each call."""
    global temperature
    temperature *= 0.99
    return temperature
