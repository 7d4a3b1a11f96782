"""The metric of a commit, compared with that of the restored state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from segue.checkpoints.loading.select import Restorable
from segue.continuity.naming import METRIC
from segue.continuity.noise import Noise, tolerances
from segue.continuity.recipe_diff import UNTRACKED
from segue.continuity.state_marks import state_marks
from segue.records import Finding
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import BUFFERS, marked_parts, restore_all


class MetricCheck:
    """Evaluates the restored state once more.

    A metric that is another each time proves nothing, nor does one of other code.
    """

    def __init__(self) -> None:
        self._finding: Finding | None = None
        self._away = math.inf
        """How far the metric is from that of the commit, relatively."""

    def findings(self, noise: Noise) -> tuple[Finding, ...]:
        """What differs by more than noise explains."""
        tolerance = tolerances(noise.floats, ())["loss"] if noise.floats else 0.0
        return () if self._finding is None or self._away <= tolerance else (self._finding,)

    def compare(
        self, evaluate: Callable[[], float], components: Mapping[str, Component], *, source: Restorable, ranks: Ranks
    ) -> None:
        """Compare, and restore what `evaluate` changes in the state.

        Every rank evaluates, as at a save; the leader's numbers are the run's.
        """
        expected, outside = source.checkpoint.manifest.metric, components.get(UNTRACKED)
        committed = source.snapshot.skeletons.get(UNTRACKED, {})
        is_same_code = isinstance(outside, OutsideState) and outside.has_metric_of(committed)
        if expected is None or not ranks.leader_decides(is_same_code):
            return
        before = state_marks(marked_parts(components))
        found = evaluate()
        if ranks.leader_decides(not _is_same_number(found, expected)):
            is_same_again = _is_same_number(found, evaluate())
            if is_same_again and ranks.is_leader:
                sentence = f"evaluate returns {found!r} after the restore, and returned {expected!r} at the commit"
                self._away = _relative(found, expected)
                self._finding = Finding(component=METRIC, channel=METRIC, sentence=sentence)
        after = state_marks(marked_parts(components))
        changed = {name.removesuffix(BUFFERS) for name, mark in after.items() if before.get(name) != mark}
        restore_all({name: c for name, c in components.items() if name in changed}, source.snapshot)


def _relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(one - other) and largest else math.inf


def _is_same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
