"""The clock of one run's decisions: it advances by monotonic time, and follows a reference slowly.

The reference is the clock of the orchestrator's server, or of the store. A jump of this machine's clock, or of the
reference alone, moves no decision: of the three clocks, two agree.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from segue.clock import Clock
from segue.units import duration

log = logging.getLogger(__name__)

JUMP_SECONDS = 2.0
"""A clock that moved against monotonic time by more than this between two looks has jumped."""
_WRONG_SECONDS = 5.0
"""A person is warned if the reference differs by this much at the start; smaller differences are only corrected."""
_SLEW = 0.05
"""The clock follows a reference that nothing else confirms by at most this share of the time since the last reading."""
_LOOK_SECONDS = 1.0
_REFERENCE_SECONDS, _FIRST_REFERENCE_SECONDS = 60.0, 5.0
"""Time between two reads of the reference, and between two reads until it has first answered."""


class Reading(NamedTuple):
    """A time that a reference clock showed."""

    at: datetime
    uncertainty_seconds: float
    name: str
    """Whose clock it is, for a message: `the Prefect server`."""


Reference = Callable[[], Reading | None]
"""Reads the reference; None if it does not answer. May take seconds."""


@dataclass(frozen=True)
class Correction:
    """The correction that follows from a reading of the reference."""

    seconds: float
    """The seconds by which the clock is moved."""
    kind: Literal["agrees", "first", "slept", "follows"]


def correction(
    error_seconds: float,
    *,
    uncertainty_seconds: float,
    local_jump_seconds: float,
    passed_seconds: float | None,
) -> Correction:
    """The correction of a clock that a reference contradicts by `error_seconds`. Pure.

    `local_jump_seconds` is by how much this machine's clock has jumped since the two agreed, and `passed_seconds` is
    the time since the previous reading; None for the first reading.
    """
    if abs(error_seconds) <= uncertainty_seconds:
        return Correction(0.0, "agrees")
    if passed_seconds is None:
        return Correction(error_seconds, "first")
    # By both clocks, more time has passed than monotonic time has counted: this machine slept.
    if local_jump_seconds and abs(error_seconds - local_jump_seconds) <= uncertainty_seconds + JUMP_SECONDS:
        return Correction(error_seconds, "slept")
    most = _SLEW * passed_seconds
    return Correction(max(-most, min(error_seconds, most)), "follows")


class LocalJumps:
    """How far this machine's clock has jumped against monotonic time."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._offset = base.now().timestamp() - base.monotonic()
        self.seconds = 0.0
        """The sum of the jumps since it was last set to 0."""

    def look(self) -> float:
        """The seconds by which the clock has jumped since the last look; 0 for a smaller movement."""
        offset = self._base.now().timestamp() - self._base.monotonic()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) <= JUMP_SECONDS:
            return 0.0
        self.seconds += moved
        return moved


class SteadyClock:
    """The time of one run. `now` never jumps, whatever this machine's clock does."""

    def __init__(self, base: Clock, *, reference: Reference) -> None:
        self.base, self._reference = base, reference
        """`base`: the clock that gives it monotonic time and sleeps."""
        self._offset = base.now().timestamp() - base.monotonic()
        self._jumps = LocalJumps(base)
        self._read_at: float | None = None
        self._asked_at: float | None = None
        self._is_reference_off = False
        self._looking = threading.Lock()
        self.trouble: str | None = None
        """What is wrong with a clock, for the run's page; None: nothing is known to be wrong."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.base.monotonic() + self._offset, UTC)

    def monotonic(self) -> float:
        return self.base.monotonic()

    def sleep(self, seconds: float) -> None:
        self.base.sleep(seconds)

    def look(self) -> None:
        """Compare the clocks; read the reference if that is due. May take seconds."""
        with self._looking:
            self._look_at_local()
            every = _FIRST_REFERENCE_SECONDS if self._read_at is None else _REFERENCE_SECONDS
            at = self.base.monotonic()
            if self._asked_at is None or self._jumps.seconds or at - self._asked_at >= every:
                self._asked_at = at
                self._look_at_reference()

    def _look_at_local(self) -> None:
        if moved := self._jumps.look():
            said = f"this machine's clock jumped by {_signed(moved)}; no decision is moved by that"
            self._say(f"{said}: the run goes by monotonic time and the server's clock")

    def _look_at_reference(self) -> None:
        before = self.base.monotonic()
        reading = self._reference()
        after = self.base.monotonic()
        if reading is None:
            return
        error = reading.at.timestamp() - ((before + after) / 2 + self._offset)
        found = correction(
            error,
            uncertainty_seconds=reading.uncertainty_seconds + (after - before) / 2,
            local_jump_seconds=self._jumps.seconds,
            passed_seconds=None if self._read_at is None else after - self._read_at,
        )
        self._offset += found.seconds
        self._read_at = after
        self._jumps.seconds = 0.0
        match found.kind:
            case "first" if abs(error) > _WRONG_SECONDS:
                self._say(f"this machine's clock is {_apart(-error)} that of {reading.name}, which the run goes by")
            case "slept":
                self._say(f"this machine slept for {duration(abs(error))}: {reading.name} and its own clock agree")
            case "follows" if abs(error) > JUMP_SECONDS and not self._is_reference_off:
                self._say(f"the clock of {reading.name} is {_apart(error)} the run's, which follows it slowly")
        self._is_reference_off = found.kind == "follows" and abs(error) > JUMP_SECONDS

    def _say(self, what: str) -> None:
        self.trouble = f"{what} (seen at {self.now():%Y-%m-%d %H:%M:%S %Z})"
        log.warning("%s. Fix: synchronize the clocks (chrony, systemd-timesyncd)", what)


@contextmanager
def steady(base: Clock, *, reference: Reference) -> Iterator[SteadyClock]:
    """A clock that is kept right by a thread of its own until the block ends. Reads the reference once before."""
    clock, stop = SteadyClock(base, reference=reference), threading.Event()

    def look() -> None:
        try:
            clock.look()
        except Exception as error:
            # Any exception: without these looks a jump of the clock would not be seen.
            log.warning("the clocks were not compared reason=%s", error)

    def work() -> None:
        while not stop.wait(_LOOK_SECONDS):
            look()

    look()

    thread = threading.Thread(target=work, name="segue-clock", daemon=True)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()  # Not joined: a server that does not answer must not hold up the run's end.


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{duration(abs(seconds))}"


def _apart(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"
