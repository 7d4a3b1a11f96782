"""Computes the profile of a column of a window, and the drift of new rows from the profile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from segue.retraining.gate.record import ColumnProfile, Kind

if TYPE_CHECKING:
    import pandas as pd

_EDGES, _BINS = 100, 10
_MOST_VALUES = 100
_SAMPLED = 100_000
"""Number of evenly spaced values from which edges are computed. The shares between edges use all values."""
_LEAST_SHARE = 1e-4
"""Share that replaces the share of an empty bin, because the logarithm of 0 is infinite."""


class Drift(NamedTuple):
    """The drift of new rows from a profile."""

    psi: float
    """Population stability index over ten bins or the most frequent values.

    Nulls have a separate bin. A column is usually called stable below 0.1 and changed above 0.25 (Siddiqi, Credit Risk
    Scorecards, 2006).
    """
    ks: float | None
    """Kolmogorov-Smirnov distance of numbers: the largest difference of the two cumulative distributions."""


def profile_of(column: pd.Series) -> ColumnProfile:
    """Return the distribution of a column."""
    rows = len(column)
    present = column.dropna()
    null_share = 1 - len(present) / rows if rows else 0.0
    kind = _kind_of(present)
    if kind == "numbers":
        edges, cumulative = _distribution(_finite(present))
        return ColumnProfile(kind=kind, rows=rows, null_share=null_share, edges=edges, cumulative=cumulative)
    shares = _shares(present) if kind == "values" else {}
    return ColumnProfile(kind=kind, rows=rows, null_share=null_share, shares=shares)


def drift_of(column: pd.Series, before: ColumnProfile) -> Drift | None:
    """Return the drift of a column from its profile. Return None if the profile has no distribution."""
    present = column.dropna()
    if before.kind == "other" or not len(column):
        return None
    if len(present) and _kind_of(present) != before.kind:
        return Drift(math.inf, None)
    null_share = 1 - len(present) / len(column)
    if before.kind == "values":
        now = _shares(present)
        names = before.shares.keys()
        then = [*before.shares.values(), 1 - sum(before.shares.values())]
        here = [now.get(name, 0.0) for name in names]
        return Drift(_stability(then, [*here, 1 - sum(here)], before.null_share, null_share), None)
    numbers = _finite(present)
    now_cumulative = _cumulative(numbers, np.array(before.edges)) if len(numbers) else np.zeros(len(before.edges))
    ks = float(np.abs(now_cumulative - np.array(before.cumulative)).max(initial=0.0))
    then_bins, here_bins = (_bins(each) for each in (np.array(before.cumulative), now_cumulative))
    return Drift(_stability(then_bins, here_bins, before.null_share, null_share), ks)


def _kind_of(present: pd.Series) -> Kind:
    import pandas as pd

    if pd.api.types.is_bool_dtype(present) or isinstance(present.dtype, pd.CategoricalDtype):
        return "values"
    if pd.api.types.is_numeric_dtype(present):
        return "numbers"
    return "values" if pd.api.types.is_string_dtype(present) else "other"


def _finite(present: pd.Series) -> npt.NDArray[np.float64]:
    numbers = present.to_numpy(np.float64)
    finite: npt.NDArray[np.float64] = numbers[np.isfinite(numbers)]
    return finite


def _distribution(numbers: npt.NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not len(numbers):
        return (), ()
    some = numbers[:: max(len(numbers) // _SAMPLED, 1)]
    edges = np.unique(np.quantile(some, np.linspace(0, 1, _EDGES + 1), method="inverted_cdf"))
    return tuple(map(float, edges)), tuple(map(float, _cumulative(numbers, edges)))


def _cumulative(numbers: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    counts = np.bincount(np.searchsorted(edges, numbers, side="left"), minlength=len(edges) + 1)
    cumulative: npt.NDArray[np.float64] = np.cumsum(counts)[: len(edges)] / len(numbers)
    return cumulative


def _bins(cumulative: npt.NDArray[np.float64]) -> list[float]:
    """Return the shares of about ten bins. The last bin contains the values above the last edge."""
    picked = cumulative[:: max(len(cumulative) // _BINS, 1)]
    return [float(each) for each in np.diff(np.concatenate([[0.0], picked, [1.0]]))]


def _shares(present: pd.Series) -> dict[str, float]:
    counts = present.astype(str).value_counts(normalize=True).head(_MOST_VALUES)
    return {str(name): float(share) for name, share in counts.items()}


def _stability(then: list[float], now: list[float], null_then: float, null_now: float) -> float:
    shares = zip(
        [*(share * (1 - null_then) for share in then), null_then],
        [*(share * (1 - null_now) for share in now), null_now],
        strict=True,
    )
    floored = [(max(a, _LEAST_SHARE), max(b, _LEAST_SHARE)) for a, b in shares]
    return sum((b - a) * math.log(b / a) for a, b in floored)
