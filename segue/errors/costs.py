"""Errors of prices and budgets, raised before any capacity was bought."""

from __future__ import annotations

from segue.errors.base import UsageError


class PriceSourceError(UsageError):
    """The current prices could not be read from their source."""

    def __init__(self, *, source: str, why: str, fix: str) -> None:
        self.source, self.why = source, why
        super().__init__(f"prices from {source!r}: {why}.", fix=fix)


class BudgetError(UsageError):
    """A run would cost more than the rest of its budget."""

    def __init__(self, *, run_id: str, why: str, fix: str) -> None:
        self.run_id, self.why = run_id, why
        super().__init__(f"run {run_id}: {why}. Nothing was bought.", fix=fix)
