"""Early stopping: ends a run when its metric has stopped improving."""

from __future__ import annotations

from typing import Any

from segue.recipe import EarlyStop


class Stopper:
    """Counts evaluations without a better metric, over all attempts of a run."""

    def __init__(self, rule: EarlyStop) -> None:
        self._rule = rule
        self._best: float | None = None
        self._worse = 0

    def judge(self, metric: float) -> str | None:
        """Count one evaluation; return a reason if the run should end now."""
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
