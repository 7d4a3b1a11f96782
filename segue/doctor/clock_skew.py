"""Checks the difference between this machine's clock and the clock of the store."""

from __future__ import annotations

from segue.clock import Clock
from segue.doctor.check import Result, fail, ok, skipped, warn
from segue.doctor.scratch import Scratch
from segue.stores import Store
from segue.stores.base import Examinable
from segue.units import duration

_WARN_SECONDS, _FAIL_SECONDS = 5.0, 60.0
"""Differences between the clocks in seconds: from the first value the check warns, from the second value it fails.

S3 refuses requests if the clock is wrong by 15 minutes. AWS announces an interruption two minutes ahead, by the clock
of AWS.
"""
_WHOLE_SECONDS = 1.0
"""Rounding error in seconds, because some stores show times in whole seconds."""


def clock_skew(store: Store, scratch: Scratch, *, clock: Clock) -> Result:
    """Compare this machine's clock with the time that the store records for a new object."""
    if not isinstance(store, Examinable):
        return skipped("this kind of store does not show when an object was written")
    key = scratch.new_key()
    try:
        before = clock.now()
        store.put(key, b"x")
        after = clock.now()
        at = store.modified_at(key)
    finally:
        scratch.forget(store, key)
    early, late = (before - at).total_seconds() - _WHOLE_SECONDS, (at - after).total_seconds()
    return judge_skew(max(early, late, 0.0), is_ahead=early > 0)


def judge_skew(seconds: float, *, is_ahead: bool) -> Result:
    """Judge whether this difference between the machine's clock and the store's clock is harmful. The function is pure.

    An attempt compares the time of a preemption on AWS or Azure with its own clock. S3 refuses requests whose time
    is far off. The parent uses the clock of its Prefect server. If the server does not answer, the parent uses its
    own clock. segue compares heartbeats by their counters, not by clocks.
    """
    if seconds < _WARN_SECONDS:
        return ok(f"this machine's clock and the store's differ by less than {duration(_WARN_SECONDS)}")
    reason = f"this machine's clock is {duration(seconds)} {'ahead of' if is_ahead else 'behind'} the store's"
    fix = "synchronize the clock of this machine (chrony, systemd-timesyncd)."
    if seconds < _FAIL_SECONDS:
        return warn(f"{reason}; the times in notices of AWS and Azure are wrong by this difference", fix=fix)
    return fail(f"{reason}; an attempt would react too late to a notice of AWS or Azure", fix=fix)
