"""Plans that cannot work, told before anything runs. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from segue.errors import HopelessPlanError
from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.spec import RunSpec
from segue.units import span

_TYPING_SECONDS = 300.0


def refuse_hopeless(
    spec: RunSpec, here: Situation, *, now: datetime, life_seconds: float, save_seconds: float | None = None
) -> None:
    """Return only if the plan can work.

    `life_seconds` is how long a spot instance lasts on the mean, `save_seconds` how long a save takes, if known.

    Raises:
        HopelessPlanError: there is less time than on-demand needs, or spot dies before it commits.
    """
    if clamp.is_late(here):
        _refuse_deadline(here, now)
    if spec.policy.name == "on_demand_only":
        return
    lives = f"a spot instance lasts {span(life_seconds)} on the mean"
    if save_seconds is not None and save_seconds > life_seconds:
        raise HopelessPlanError(
            reason="save_longer_than_life",
            why=f"one save takes {span(save_seconds)} and {lives}: most would die before their first commit.",
            fix='Make saves faster (checkpoints.fast_folder), or set policy.name = "on_demand_only".',
        )
    if here.at_risk_seconds > life_seconds:
        raise HopelessPlanError(
            reason="at_risk_longer_than_life",
            why=f"up to {span(here.at_risk_seconds)} lie between two commits and {lives}: most would commit nothing.",
            fix="Commit more often: lower checkpoints.every_seconds, every_steps or max_work_at_risk_seconds.",
        )


def _refuse_deadline(here: Situation, now: datetime) -> None:
    left, work = here.remaining_seconds or 0.0, here.work_seconds or 0.0
    needed = work + here.changeover_seconds
    # Whoever reads it needs a while to ask again.
    would_do = (now + timedelta(seconds=needed + _TYPING_SECONDS)).isoformat(timespec="minutes")
    raise HopelessPlanError(
        reason="deadline_too_near",
        why=(
            f"{span(left)} are left to the deadline and on-demand alone needs {span(needed)} "
            f"({span(work)} of work and margin, {span(here.changeover_seconds)} to start): "
            f"{span(needed - left)} are missing."
        ),
        fix=f"A deadline of {would_do} would just do, all on on-demand; a later one leaves room for spot.",
    )
