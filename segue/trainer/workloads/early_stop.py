"""Early stopping. It ends a run when the metric of the run has stopped improving."""

from __future__ import annotations

from typing import Any

from segue.recipe import EarlyStop


class Stopper:
    """A counter of the evaluations without a better metric, over all attempts of a run."""

    def __init__(self, rule: EarlyStop) -> None:
        self._rule = rule
        self._best: float | None = None
        self._worse = 0

    def judge(self, metric: float) -> str | None:
        """Count one evaluation. If the run should end now, return a reason."""
        rule = self._rule
        sign = 1.0 if rule.mode == "min" else -1.0
        if self._best is None or sign * metric < sign * self._best - rule.min_delta:
            self._best, self._worse = metric, 0
            return None
        self._worse += 1
        if self._worse < rule.patience:
            return None
        return f"the metric was no better than {self._best:.6g} in the last {self._worse} evaluations"

    def capture(self) -> Any:
        return {"best": self._best, "worse": self._worse}

    def restore(self, tree: Any) -> None:
        self._best, self._worse = tree["best"], int(tree["worse"])
