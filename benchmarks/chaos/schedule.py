"""Schedules of faults: drawn from a seed, or read from a file. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from segue.errors import UsageError
from segue.records import FiniteValue

FIRST_SECONDS = 15.0
"""No fault is drawn before this time, because the first runs still start."""
EVERY_SECONDS = 7.5
_MOST_PICK = 997


class Fault(FiniteValue):
    """One fault: its kind, its time, its duration, and the choice of its target."""

    kind: str = Field(description="Kind of fault, as `python -m benchmarks chaos --kinds` lists them.")
    at_seconds: float = Field(ge=0, description="Seconds after the first run was started.")
    for_seconds: float | None = Field(
        None, ge=0, le=120, description="Seconds until it is over, where it lasts; None: drawn for the kind."
    )
    pick: int = Field(0, ge=0, description="Selects what is hit among what could be: this number modulo how many.")


class Schedule(FiniteValue):
    """The faults of one chaos benchmark."""

    faults: tuple[Fault, ...] = Field(min_length=1)

    @property
    def end_seconds(self) -> float:
        """Time at which the last fault is over."""
        return max(fault.at_seconds + (fault.for_seconds or 0.0) for fault in self.faults)


def drawn(*, seed: int, minutes: float, kinds: Mapping[str, tuple[float, float]]) -> Schedule:
    """The schedule of a seed. `kinds` has the shortest and the longest time of each kind in seconds. All kinds come
    equally often, to within one fault. The mean time between two faults is 7.5 seconds.
    """
    chance = random.Random(seed)
    count = max(1, int((60 * minutes - FIRST_SECONDS) / EVERY_SECONDS))
    names: list[str] = []
    while len(names) < count:
        names += chance.sample(sorted(kinds), len(kinds))
    return Schedule(
        faults=tuple(
            Fault(
                kind=name,
                at_seconds=round(FIRST_SECONDS + (number + chance.random()) * EVERY_SECONDS, 2),
                for_seconds=round(chance.uniform(*kinds[name]), 2),
                pick=chance.randrange(_MOST_PICK),
            )
            for number, name in enumerate(names[:count])
        )
    )


def read_schedule(file: Path, *, kinds: Mapping[str, tuple[float, float]], seed: int = 0) -> Schedule:
    """The schedule in a JSON file; a fault without `for_seconds` gets a time drawn for its kind.

    Raises:
        UsageError: the file cannot be read, is not a schedule, or names kinds that do not exist.
    """
    try:
        found = Schedule.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).", fix="name a readable JSON file.") from None
    except ValidationError as error:
        why = "; ".join(_problems(error))
        raise UsageError(f"{file} is not a schedule of faults: {why}.", fix="correct these fields.") from None
    unknown = sorted({fault.kind for fault in found.faults} - kinds.keys())
    if unknown:
        known = ", ".join(sorted(kinds))
        raise UsageError(f"{file} names unknown kinds of faults: {', '.join(unknown)}.", fix=f"use these: {known}.")
    chance = random.Random(seed)
    return Schedule(faults=tuple(_timed(fault, kinds[fault.kind], chance) for fault in found.faults))


def _timed(fault: Fault, seconds: tuple[float, float], chance: random.Random) -> Fault:
    if fault.for_seconds is not None:
        return fault
    return fault.model_copy(update={"for_seconds": round(chance.uniform(*seconds), 2)})


def _problems(error: ValidationError) -> tuple[str, ...]:
    return tuple(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors())
