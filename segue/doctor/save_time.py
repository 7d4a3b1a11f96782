"""Whether a save fits the time between a notice and the kill. Pure.

`segue doctor` shows it; a run logs it before the next segment, once an attempt has measured a save.
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
"""How long ahead AWS announces an interruption."""


def notice_seconds(spec: RunSpec, *, platform: str | None = None, kept_seconds: float | None = None) -> float:
    """Seconds from a notice to the kill.

    If the run spec names no metadata services, the service of `platform` is watched. `kept_seconds` is the time that
    the pools give after SIGTERM; None if that is not known.
    """
    here = () if spec.trains_elsewhere else (platform,)  # This machine is no node of the cluster.
    watched = spec.notices if spec.notices is not None else here
    given = _AWS_SECONDS if "aws" in watched else spec.grace_seconds
    return given if kept_seconds is None else min(given, kept_seconds)


def judge_save(seconds: float, *, step_seconds: float, notice_seconds: float, where: str, unless: str = "") -> Result:
    """Whether a save of this length can be made in the time that a notice leaves.

    An attempt ends its step first, and begins a last save only if that is expected to take at most 70% of the time that
    is left. `unless` says in which case a notice gives more time.
    """
    took = f"a save takes {duration(seconds)} (measured {where})"
    given = f"a notice gives {duration(notice_seconds)}{unless}"
    fix = (
        "raise grace_seconds and the platform's grace period, use a faster store or checkpoints.fast_folder, or save "
        "more often, because each preemption loses what followed the last save."
    )
    if seconds > notice_seconds:
        return fail(f"{took}, and {given}: no last save can be made", fix=fix)
    if step_seconds + seconds / NOTICE_SHARE > notice_seconds:
        return warn(f"{took}, a step {duration(step_seconds)}, and {given}: a last save is often left out", fix=fix)
    return ok(f"{took}, and {given}")


def newly_measured(spec: RunSpec, history: History) -> Result | None:
    """The problem with the time of saves, if the newest attempt has measured one; None if there is no problem.

    An attempt that measured none says nothing new, so a wait for capacity does not repeat the warning.
    """
    reports, seconds = history.last_reports(), save_seconds(history)
    if seconds is None or reports[-1].save_seconds is None:
        return None
    found = judge_save(
        seconds,
        step_seconds=step_seconds(spec, history) or 0.0,
        notice_seconds=notice_seconds(spec),
        where=IN_ATTEMPTS,
        # The parent is on another machine, and does not know whether AWS's metadata is watched on those of segments.
        unless="" if spec.notices is not None else f" ({duration(_AWS_SECONDS)} on EC2)",
    )
    return None if found.outcome is CheckOutcome.OK else found
