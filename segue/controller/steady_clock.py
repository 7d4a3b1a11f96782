"""Provides the clock for the decisions of a run. The clock advances with monotonic time and follows a reference clock.

The reference clock is the clock of the orchestrator's server, or the clock of the store. A jump of only this machine's
clock, or of only the reference clock, does not affect decisions, because the other clock still agrees with monotonic
time.
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
"""Least change of the difference between a clock and monotonic time, in seconds, that counts as a jump."""
_WRONG_SECONDS = 5.0
"""Largest difference from the reference clock at the start, in seconds, that causes no warning.

The clock corrects a smaller difference silently.
"""
_SLEW = 0.05
"""Largest unconfirmed correction by a reference clock, as a share of the time since the last reading."""
_LOOK_SECONDS = 1.0
_REFERENCE_SECONDS, _FIRST_REFERENCE_SECONDS = 60.0, 5.0
"""Seconds between two reads of the reference clock.

The shorter interval applies until the first answer of the reference clock.
"""


class Reading(NamedTuple):
    """A time that a reference clock returned."""

    at: datetime
    uncertainty_seconds: float
    name: str
    """Name of the clock in messages, for example `the Prefect server`."""


Reference = Callable[[], Reading | None]
"""A function that reads the reference clock.

The function returns None if the reference clock does not answer. A call may take seconds.
"""


@dataclass(frozen=True)
class Correction:
    """The correction that follows from a reading of the reference clock."""

    seconds: float
    """The number of seconds to add to the clock."""
    kind: Literal["agrees", "first", "slept", "follows"]


def correction(
    error_seconds: float,
    *,
    uncertainty_seconds: float,
    local_jump_seconds: float,
    passed_seconds: float | None,
) -> Correction:
    """Return the correction of a clock that differs from the reference clock by `error_seconds`. The function is pure.

    `local_jump_seconds` is the sum of the jumps of this machine's clock since the clocks last agreed. `passed_seconds`
    is the time since the previous reading, or None for the first reading.
    """
    if abs(error_seconds) <= uncertainty_seconds:
        return Correction(0.0, "agrees")
    if passed_seconds is None:
        return Correction(error_seconds, "first")
    # If the local clock and the reference clock both show more time than monotonic time, this machine slept.
    if local_jump_seconds and abs(error_seconds - local_jump_seconds) <= uncertainty_seconds + JUMP_SECONDS:
        return Correction(error_seconds, "slept")
    most = _SLEW * passed_seconds
    return Correction(max(-most, min(error_seconds, most)), "follows")


class LocalJumps:
    """The jumps of this machine's clock against monotonic time."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._offset = base.now().timestamp() - base.monotonic()
        self.seconds = 0.0
        """The sum of the jumps in seconds, since the last reset to 0."""

    def look(self) -> float:
        """Return the seconds by which the clock has jumped since the last check.

        Return 0 if the difference is too small for a jump.
        """
        offset = self._base.now().timestamp() - self._base.monotonic()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) <= JUMP_SECONDS:
            return 0.0
        self.seconds += moved
        return moved


class SteadyClock:
    """The clock of one run. The time from `now` never jumps, even if this machine's clock jumps."""

    def __init__(self, base: Clock, *, reference: Reference) -> None:
        self.base, self._reference = base, reference
        """`base` is the clock for monotonic time and sleeping, and `_reference` reads the reference clock."""
        self._offset = base.now().timestamp() - base.monotonic()
        self._jumps = LocalJumps(base)
        self._read_at: float | None = None
        self._asked_at: float | None = None
        self._is_reference_off = False
        self._looking = threading.Lock()
        self.trouble: str | None = None
        """The known problem of a clock for the run's page, or None if no problem is known."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.base.monotonic() + self._offset, UTC)

    def monotonic(self) -> float:
        return self.base.monotonic()

    def sleep(self, seconds: float) -> None:
        self.base.sleep(seconds)

    def look(self) -> None:
        """Compare the clocks, and read the reference clock if a read is due. The method may take seconds."""
        with self._looking:
            self._look_at_local()
            every = _FIRST_REFERENCE_SECONDS if self._read_at is None else _REFERENCE_SECONDS
            at = self.base.monotonic()
            if self._asked_at is None or self._jumps.seconds or at - self._asked_at >= every:
                self._asked_at = at
                self._look_at_reference()

    def _look_at_local(self) -> None:
        if moved := self._jumps.look():
            said = f"this machine's clock jumped by {_signed(moved)}; decisions are not affected"
            self._say(f"{said}: the run uses monotonic time and the server's clock")

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
                self._say(f"this machine's clock is {_apart(-error)} the clock of {reading.name}, which the run uses")
            case "slept":
                self._say(f"this machine slept for {duration(abs(error))}: its clock agrees with {reading.name}")
            case "follows" if abs(error) > JUMP_SECONDS and not self._is_reference_off:
                self._say(f"the clock of {reading.name} is {_apart(error)} the run's clock, which follows it slowly")
        self._is_reference_off = found.kind == "follows" and abs(error) > JUMP_SECONDS

    def _say(self, what: str) -> None:
        self.trouble = f"{what} (seen at {self.now():%Y-%m-%d %H:%M:%S %Z})"
        log.warning("%s. Fix: synchronize the clocks (chrony, systemd-timesyncd)", what)


@contextmanager
def steady(base: Clock, *, reference: Reference) -> Iterator[SteadyClock]:
    """Provide a clock that a thread corrects until the `with` block ends.

    The function reads the reference clock once before the block begins.
    """
    clock, stop = SteadyClock(base, reference=reference), threading.Event()

    def look() -> None:
        try:
            clock.look()
        except Exception as error:
            # Any exception is caught, because nothing would detect a jump of the clock if this thread ended.
            log.warning("could not compare the clocks reason=%s", error)

    def work() -> None:
        while not stop.wait(_LOOK_SECONDS):
            look()

    look()

    thread = threading.Thread(target=work, name="segue-clock", daemon=True)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()  # The thread is not joined: a server that does not answer must not delay the end of the run.


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{duration(abs(seconds))}"


def _apart(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"
