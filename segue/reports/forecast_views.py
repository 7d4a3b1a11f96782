"""Shows a forecast: one line for each fact, one table row for each policy, a picture of some simulated runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from segue.curves.picture import page_figure, png
from segue.units import duration, money

if TYPE_CHECKING:
    from segue.simulation.forecast import Expected, Sample

_COLOURS = {"finished": "#ffffff", "idle": "#dddddd", "spot": "#2f6db0", "on-demand": "#e07b39"}
"""Colour of each mode of a simulated run. The first colour belongs to mode -1, the next to mode 0."""
_DEADLINE, _LATEST = "#111111", "#b3261e"


def draw_sample(sample: Sample, *, title: str, deadline_seconds: float | None, latest_seconds: float | None) -> bytes:
    """Draw the capacity of some simulated runs over time as a PNG. Both numbers of seconds are measured from now.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    hours = sample.tick_seconds / 3600
    runs, ticks = sample.modes.shape
    with page_figure(4.2, needed_for="A picture") as figure:
        from matplotlib.colors import ListedColormap
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        axes = figure.subplots()
        colours = ListedColormap(list(_COLOURS.values()))
        grid = {"extent": (0, ticks * hours, runs + 0.5, 0.5), "aspect": "auto", "interpolation": "nearest"}
        axes.imshow(sample.modes, cmap=colours, vmin=-1, vmax=2, **grid)
        for row in range(1, runs):
            axes.axhline(row + 0.5, color="#ffffff", lw=2)
        legend: list[Any] = [Patch(color=colour, label=name) for name, colour in list(_COLOURS.items())[1:]]
        lines = ((deadline_seconds, _DEADLINE, "-", "deadline"), (latest_seconds, _LATEST, "--", "latest safe moment"))
        for seconds, colour, style, label in lines:
            if seconds is not None:
                axes.axvline(seconds / 3600, color=colour, ls=style, lw=1.6)
                legend.append(Line2D([], [], color=colour, ls=style, label=label))
        right = max(ticks * hours, (deadline_seconds or 0.0) / 3600)
        axes.set(xlabel="hours from now", ylabel="simulated run", xlim=(0, right * 1.01))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
        return png(figure)


def forecast_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the text of each line about a forecast."""
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
        *_pool_lines(facts, currency),
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
            (
                "latest spot start",
                f"{start}: after that, the safety clamp permits no spot start if no more work is committed",
            ),
        ]
    return lines + [("note", note) for note in facts["notes"]]


def _pool_lines(facts: dict[str, Any], currency: str) -> list[tuple[str, str]]:
    """If there are several spot pools, return one line for each pool, in the order in which a run requests machines."""
    pools = facts["pools"]
    if len(pools) < 2:
        return []
    lines = []
    not_asked = "is asked if the pools before it give no machine"
    if facts["plans_pools_together"]:
        is_on_demand = all(pool["asked_after_seconds"] is None for pool in pools)
        not_asked = "is not asked: on-demand costs less now" if is_on_demand else "is asked if less slack is left"
    for pool in pools:
        after = pool["asked_after_seconds"]
        asked = not_asked
        if pool["is_dearer_than_on_demand"]:
            asked = "is not asked, because it costs more than on-demand"
        elif after is not None:
            asked = "is asked at once" if after < 1 else f"is asked after {duration(after)} without a machine"
        cost = f"{money(pool['cost_of_useful_hour'], currency)} per hour of useful work"
        life, wait = duration(pool["mean_life_seconds"]), duration(pool["mean_wait_seconds"])
        lines.append(("spot pool", f"{pool['deployment']} {asked}: {cost}, mean life {life}, mean wait {wait}"))
    return lines


def _lateness(facts: dict[str, Any]) -> str:
    if facts["late_share"] is None:
        return "none: there is no deadline"
    if facts["late_share"] == 0.0:
        return "0 %: the safety clamp switches to on-demand in time, provided the step time above holds."
    return f"{facts['late_share']:.1%}"


def policy_row(one: Expected, *, currency: str) -> dict[str, str]:
    """Return the row of one policy in the table of a forecast."""
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
