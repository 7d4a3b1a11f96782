"""Checks whether a save is shorter than the time between a notice and the kill. The module is pure.

`segue doctor` shows this check. After an attempt has measured a save, the run also logs the result of the check before
the next segment.
"""

from __future__ import annotations

from segue.doctor.check import CheckOutcome, Result, fail, ok, warn
from segue.policy.estimates import save_seconds, step_seconds
from segue.policy.save_interval import NOTICE_SHARE
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration

IN_ATTEMPTS = "in the run's attempts"
_AWS_SECONDS = 120.0
"""Seconds between AWS's notice and the interruption."""


def notice_seconds(spec: RunSpec, *, platform: str | None = None, kept_seconds: float | None = None) -> float:
    """Return the seconds from a notice to the kill.

    If the run spec names no metadata services, the run watches the service of `platform`. `kept_seconds` is the grace
    period of the pools after SIGTERM in seconds. If the grace period is unknown, `kept_seconds` is None.
    """
    here = () if spec.trains_elsewhere else (platform,)  # This machine is no node of the cluster.
    watched = spec.notices if spec.notices is not None else here
    given = _AWS_SECONDS if "aws" in watched else spec.grace_seconds
    return given if kept_seconds is None else min(given, kept_seconds)


def judge_save(seconds: float, *, step_seconds: float, notice_seconds: float, where: str, unless: str = "") -> Result:
    """Judge whether a save of this duration ends between a notice and the kill.

    After a notice, an attempt first ends its step. If the expected duration of a save is at most 70% of the remaining
    time, the attempt begins a last save. `unless` is a text about cases in which a notice gives more time.
    """
    took = f"a save takes {duration(seconds)} (measured {where})"
    given = f"a notice gives {duration(notice_seconds)}{unless}"
    fix = (
        "set a higher value for grace_seconds and for the platform's grace period, use a faster store or "
        "checkpoints.fast_folder, or save more often, because each preemption loses the steps since the last save."
    )
    if seconds > notice_seconds:
        return fail(f"{took}, and {given}: no last save can be made", fix=fix)
    if step_seconds + seconds / NOTICE_SHARE > notice_seconds:
        return warn(
            f"{took}, a step {duration(step_seconds)}, and {given}: there is often no time for a last save", fix=fix
        )
    return ok(f"{took}, and {given}")


def newly_measured(spec: RunSpec, history: History) -> Result | None:
    """Return the warning or failure about the duration of a save, if the newest attempt measured a save.

    If there is no problem, return None. If the newest attempt measured no save, also return None. Otherwise a run that
    waits for capacity would log a warning twice.
    """
    reports, seconds = history.last_reports(), save_seconds(history)
    if seconds is None or reports[-1].save_seconds is None:
        return None
    found = judge_save(
        seconds,
        step_seconds=step_seconds(spec, history) or 0.0,
        notice_seconds=notice_seconds(spec),
        where=IN_ATTEMPTS,
        # The parent is on another machine; it does not know if segments watch AWS's metadata service.
        unless="" if spec.notices is not None else f" ({duration(_AWS_SECONDS)} on EC2)",
    )
    return None if found.outcome is CheckOutcome.OK else found
