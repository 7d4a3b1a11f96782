"""The comparison of the metric of the restored state with the metric of the commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from segue.continuity.naming import METRIC
from segue.continuity.noise import Noise, tolerances
from segue.continuity.recipe_diff import UNTRACKED
from segue.continuity.state_marks import state_marks
from segue.records import Finding
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.resuming.found import Found
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import BUFFERS, marked_parts, restore_all


@dataclass(frozen=True)
class MetricCheck:
    """The result of evaluating the restored state once more. The default values mean that nothing differs."""

    finding: Finding | None = None
    away: float = math.inf
    """Relative difference between the new metric and the metric of the commit."""

    def findings(self, noise: Noise) -> tuple[Finding, ...]:
        """Return the finding if the metric differs by more than the noise."""
        tolerance = tolerances(noise.floats, ())["loss"] if noise.floats else 0.0
        return () if self.finding is None or self.away <= tolerance else (self.finding,)


def check_metric(
    evaluate: Callable[[], float], components: Mapping[str, Component], *, found: Found, ranks: Ranks
) -> MetricCheck:
    """Evaluate the restored state, compare the metric, and undo the state changes that `evaluate` makes.

    The comparison proves nothing if the metric differs at each call, or if the code of the metric has changed. Every
    rank evaluates, and the leader's number counts, in the same way as at a save.
    """
    expected, outside = found.checkpoint.manifest.metric, components.get(UNTRACKED)
    committed = found.source.snapshot.skeletons.get(UNTRACKED, {})
    is_same_code = isinstance(outside, OutsideState) and outside.has_metric_of(committed)
    if expected is None or not ranks.leader_decides(is_same_code):
        return MetricCheck()
    before, check = state_marks(marked_parts(components)), MetricCheck()
    now = evaluate()
    if ranks.leader_decides(not _is_same_number(now, expected)):
        is_same_again = _is_same_number(now, evaluate())
        if is_same_again and ranks.is_leader:
            sentence = f"evaluate returns {now!r} after the restore, and returned {expected!r} at the commit"
            check = MetricCheck(Finding(component=METRIC, channel=METRIC, sentence=sentence), _relative(now, expected))
    after = state_marks(marked_parts(components))
    changed = {name.removesuffix(BUFFERS) for name, mark in after.items() if before.get(name) != mark}
    restore_all({name: c for name, c in components.items() if name in changed}, found.source.snapshot)
    return check


def _relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(one - other) and largest else math.inf


def _is_same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
