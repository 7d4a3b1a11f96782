"""A forecast as people read it: one line for each fact, one table row for each policy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from segue.units import duration, money

if TYPE_CHECKING:
    from segue.simulation.forecast import Expected


def forecast_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as people read them: name and text of each line."""
    per_step = f"{facts['steps'] - facts['committed_step']} steps of {facts['step_seconds']:.4g} s"
    currency = facts["currency"]
    cost, least, most, alone = (
        money(facts[name], currency) for name in ("cost", "cost_p5", "cost_p95", "on_demand_cost")
    )
    is_forced = facts["comes_to"] != facts["policy"]
    per_death = f"{duration(facts['lost_by_a_death_seconds'])} per death without a notice"
    lines = [
        ("work", f"{duration(facts['work_seconds'])} ({per_step}, {facts['step_seconds_basis']})"),
        ("policy", facts["policy"] + ("; here it uses on-demand alone" if is_forced else "")),
        ("expected cost", f"{cost} (p5 {least}, p95 {most}), {facts['cost_share']:.0%} of on-demand only ({alone})"),
        ("figures from", f"{facts['runs']} simulated runs, seed {facts['seed']}"),
        ("chance of lateness", _lateness(facts)),
        ("preemptions", f"{facts['preemptions']:.1f}"),
        ("lost work", f"{duration(facts['lost_seconds'])}, {per_death}"),
        ("save interval", facts["cadence"]),
        ("mean finish", _moment(facts["finish"])),
    ]
    if facts["deadline"] is not None:
        safe, start = _moment(facts["latest_safe_moment"]), _moment(facts["latest_spot_start"])
        lines += [
            ("deadline", f"{_moment(facts['deadline'])}, slack {duration(facts['slack_seconds'])}"),
            ("latest safe moment", f"{safe}: on-demand has to start by then if no more work is committed"),
            ("latest spot start", f"{start}: later, the safety clamp permits none if no more work is committed"),
        ]
    return lines + [("note", note) for note in facts["notes"]]


def _lateness(facts: dict[str, Any]) -> str:
    if facts["late_share"] is None:
        return "none: there is no deadline"
    if facts["late_share"] == 0.0:
        return "0 %: the safety clamp switches to on-demand in time, provided the step time above holds."
    return f"{facts['late_share']:.1%}"


def policy_row(one: Expected, *, currency: str) -> dict[str, str]:
    """The line of one policy in the table of a forecast."""
    return {
        "policy": one.policy,
        f"cost, {currency}": f"{one.cost:.4g}",
        f"p5 to p95, {currency}": f"{one.cost_p5:.4g} to {one.cost_p95:.4g}",
        "of on-demand": f"{one.cost_share:.0%}",
        "late": f"{one.late_share:.1%}",
        "preemptions": f"{one.preemptions:.1f}",
        "takes": duration(one.finish_seconds),
    }


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M %Z}"
