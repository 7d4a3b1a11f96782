"""Shows what the runs of a store have observed on pools: values for JSON output, table rows, and a plot.

The module is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from segue.curves.picture import page_figure, png
from segue.records import SeenInterval, SeenPools
from segue.units import duration

AGES_HOURS = (0.25, 1.0, 4.0, 16.0)
"""Ages of an up interval in hours. These ages are the limits of the ranges in `ends_by_age`."""
_CELL_SECONDS = 600.0
_FEWEST_CELLS = 36
"""A correlation is shown only if the states of both pools are known for this number of ten-minute cells (6 hours)."""
_UP, _DOWN = "#2f6db0", "#dddddd"


def pool_facts(seen: SeenPools) -> list[dict[str, Any]]:
    """Return the observations of each pool, sorted by the pool's name.

    Spot pools have values about availability, and on-demand pools have values about starts.
    """
    names = sorted({*seen.prices, *(each.pool for each in seen.intervals), *(each.pool for each in seen.starts)})
    return [_facts(name, seen) for name in names]


def correlations(seen: SeenPools) -> list[dict[str, Any]]:
    """Return the correlation between the states of each pair of spot pools at the same moments.

    The value 1 means that the states were always equal, and 0 means independence. If a pair was observed together for
    less than six hours, or if a state never changed, the result does not contain the pair.
    """
    states = _states(seen.intervals)
    found = []
    for one, other in combinations(sorted(states), 2):
        both = ~np.isnan(states[one]) & ~np.isnan(states[other])
        a, b = states[one][both], states[other][both]
        if len(a) >= _FEWEST_CELLS and a.std() > 0 and b.std() > 0:
            hours = len(a) * _CELL_SECONDS / 3600
            found.append(
                {"pools": [one, other], "correlation": round(float(np.corrcoef(a, b)[0, 1]), 3), "hours": hours}
            )
    return found


def pool_row(facts: dict[str, Any], *, now: datetime) -> dict[str, str]:
    """Return the row of one pool in the table."""
    price, longest = facts["price_per_hour"], facts["longest_start_seconds"]
    return {
        "pool": facts["pool"],
        "price/h": "-" if price is None else f"{price:.4g} {facts['currency']}",
        "up": "-" if facts["up_share"] is None else f"{facts['up_share']:.0%}",
        "mean life": _mean(facts["mean_life_seconds"], facts["up_seconds"]),
        "mean wait": _mean(facts["mean_wait_seconds"], facts["down_seconds"]),
        "longest start": "-" if longest is None else duration(longest),
        "runs": str(facts["runs"]),
        "seen": f"{duration((now - datetime.fromisoformat(facts['last_seen'])).total_seconds())} ago",
    }


def draw_pools(seen: SeenPools, *, now: datetime) -> bytes:
    """Draw the availability of each spot pool over time, as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = sorted({each.pool for each in seen.intervals})
    with page_figure(1.2 + 0.4 * len(names), needed_for="A picture") as figure:
        axes = figure.subplots()
        for each in seen.intervals:
            begin = (each.begun_at - now).total_seconds() / 86_400
            colour = _UP if each.is_up else _DOWN
            axes.barh(names.index(each.pool), each.seconds / 86_400, left=begin, height=0.7, color=colour)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel("days before now; blue: an attempt had a machine, grey: an attempt waited for one")
        axes.set_xlim(right=0)
        return png(figure)


def _facts(name: str, seen: SeenPools) -> dict[str, Any]:
    own = [each for each in seen.intervals if each.pool == name]
    starts = [each for each in seen.starts if each.pool == name]
    up, down = ([each for each in own if each.is_up is is_up] for is_up in (True, False))
    up_seconds, down_seconds = (sum(each.seconds for each in these) for these in (up, down))
    price = seen.prices.get(name)
    moments = [each.ended_at for each in own] + [each.decided_at for each in starts]
    moments += [price.seen_at] if price is not None else []
    return {
        "pool": name,
        "price_per_hour": None if price is None else price.per_hour,
        "currency": None if price is None else price.currency,
        "up_share": round(up_seconds / (up_seconds + down_seconds), 4) if up_seconds + down_seconds else None,
        "up_seconds": round(up_seconds, 1),
        "down_seconds": round(down_seconds, 1),
        "mean_life_seconds": _mean_to_end(up),
        "ends_by_age": _ends_by_age(up),
        "mean_wait_seconds": _mean_to_end(down),
        "starts": len(starts),
        "longest_start_seconds": max((each.seconds for each in starts), default=None),
        "intervals": len(own),
        "runs": len({*(each.log_id for each in own), *(each.log_id for each in starts)}),
        "last_seen": max(moments).isoformat(),
        "last_state": None if not own else "up" if max(own, key=lambda each: each.ended_at).is_up else "down",
    }


def _mean_to_end(intervals: Sequence[SeenInterval]) -> float | None:
    """Return the mean length of intervals, as if intervals ended at a constant rate. If no end was observed, return
    None."""
    ends = sum(each.has_ended for each in intervals)
    return round(sum(each.seconds for each in intervals) / ends, 1) if ends else None


def _ends_by_age(up: Sequence[SeenInterval]) -> list[dict[str, Any]]:
    """Return for each age range the share of machines that were lost, among the machines that reached the range."""
    edges = [0.0, *(3600 * hours for hours in AGES_HOURS), np.inf]
    found = []
    for begin, end in pairwise(edges):
        reached = [each for each in up if each.seconds > begin]
        lost = sum(each.has_ended and each.seconds <= end for each in reached)
        # A machine that was still there when its attempt ended shows nothing beyond that moment.
        known = [each for each in reached if each.has_ended or each.seconds > end]
        share = round(lost / len(known), 3) if known else None
        found.append(
            {"from_hours": begin / 3600, "to_hours": None if np.isinf(end) else end / 3600, "lost_share": share}
        )
    return found


def _states(intervals: Sequence[SeenInterval]) -> dict[str, np.ndarray]:
    """Return each pool's state in each cell of ten minutes: 1 for up, 0 for down, NaN for unknown."""
    if not intervals:
        return {}
    first = min(each.begun_at for each in intervals)
    cells = int(max((each.ended_at - first).total_seconds() for each in intervals) // _CELL_SECONDS) + 1
    states = {each.pool: np.full(cells, np.nan) for each in intervals}
    for each in intervals:
        begin = (each.begun_at - first).total_seconds() / _CELL_SECONDS
        states[each.pool][int(np.ceil(begin)) : int(begin + each.seconds / _CELL_SECONDS)] = float(each.is_up)
    return states


def _mean(seconds: float | None, watched: float) -> str:
    if seconds is not None:
        return duration(seconds)
    return f"> {duration(watched)}" if watched else "-"
