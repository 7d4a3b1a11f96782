"""Refuses infeasible plans before a run starts. The module is pure."""

from __future__ import annotations

from datetime import datetime

from segue.errors import HopelessPlanError
from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.spec import RunSpec
from segue.units import duration, later

_TYPING_SECONDS = 300.0
"""Seconds that a person needs for a new request with a later deadline."""


def refuse_hopeless(
    spec: RunSpec, here: Situation, *, now: datetime, life_seconds: float, save_seconds: float | None = None
) -> None:
    """Raise an error if the plan is infeasible.

    `life_seconds` is the mean time from a spot machine's start to its preemption. `save_seconds` is the duration of a
    save, if known.

    Raises:
        HopelessPlanError: on-demand needs more than the remaining time, or spot machines die before they commit.
    """
    if clamp.is_late(here):
        _refuse_deadline(spec, here, now)
    if spec.policy.name == "on_demand_only":
        return
    life = f"the mean life of a spot machine, {duration(life_seconds)}"
    if save_seconds is not None and save_seconds > life_seconds:
        raise HopelessPlanError(
            reason="save_longer_than_life",
            why=f"one save takes {duration(save_seconds)}, longer than {life}: most die before a commit.",
            fix='make saves faster (checkpoints.fast_folder), or set policy.name = "on_demand_only".',
        )
    if here.at_risk_seconds > life_seconds:
        between = duration(here.at_risk_seconds)
        raise HopelessPlanError(
            reason="at_risk_longer_than_life",
            why=f"{life}, is shorter than the {between} between two commits: most machines commit nothing.",
            fix="lower checkpoints.every_seconds, every_steps or max_work_at_risk_seconds.",
        )


def _refuse_deadline(spec: RunSpec, here: Situation, now: datetime) -> None:
    left, with_margin = here.remaining_seconds or 0.0, here.work_seconds or 0.0
    work, start = with_margin / (1 + spec.policy.margin_share), here.changeover_seconds
    needed = with_margin + start
    parts = [f"{duration(work)} of work"]
    if with_margin - work >= 1:
        parts.append(f"{duration(with_margin - work)} of margin (policy.margin_share = {spec.policy.margin_share:g})")
    told = " (policy.changeover_seconds)" if start == spec.policy.changeover_seconds else ", the longest of this run"
    parts.append(f"{duration(start)} to start{told}")
    earliest = later(now, needed + _TYPING_SECONDS).isoformat(timespec="minutes")
    # A smaller margin and a faster start help only if the work itself fits into the remaining time.
    settings = "; or lower the settings named here, if the run needs less" if work < left else ""
    raise HopelessPlanError(
        reason="deadline_too_near",
        why=(
            f"the deadline is in {duration(left)} and on-demand alone needs {duration(needed)}: "
            f"{', '.join(parts)}. {duration(needed - left)} are missing."
        ),
        fix=f"set the deadline to {earliest} or later, which leaves no time for spot{settings}.",
    )
