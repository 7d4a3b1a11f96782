"""Compares a candidate with the model in service, on the same rows and within subgroups of rows.

`promotion.py` decides by this comparison. The module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from segue.errors import ScoresError
from segue.retraining.model_record import Comparison, Interval, LeftOut
from segue.retraining.promotion import decide  # noqa: F401 - programs that compare models themselves find it here
from segue.retraining.promotion_spec import EvaluationSpec

if TYPE_CHECKING:
    import pandas as pd

Scores = Mapping[str, npt.NDArray[np.float64]]
"""For each metric, a number for each row. A lower number is better. A number that is not finite is ignored."""

_RESAMPLES = 1_000
_MOST_UNITS = 10_000
"""Largest number of units that the bootstrap draws.

If there are more rows, they are put into random groups. The groups do not change the intervals.
"""
_INTERVAL = (2.5, 97.5)
_LARGEST = 1e150
"""Scores above this value count as infinite, because a mean of larger scores could overflow."""
_MOST_GAIN = 1e9
_FIRST_ROWS = 5
_MOST_PLACES = 5

_MOST_NAMED = 3
_MOST_RECORDED = 1_000
"""Maximum number of values per column with a recorded number of rows. The most frequent values are recorded."""


def checked_scores(scores: object, *, rows: int, function: str, place_of: Callable[[int], str] = str) -> Scores:
    """Return the scores of the user's function as arrays. `place_of` gives the file and number of a row.

    Missing numbers become nan. The index of a pandas Series identifies its rows.

    Raises:
        ScoresError: the function did not return a dict with a number for each row. The message names the rows that
            the function dropped. Both models must be compared on the same rows.
    """
    if not isinstance(scores, Mapping) or not scores:
        raise ScoresError(function=function, why="it did not return a dict of arrays by metric")
    checked = {}
    for metric, values in scores.items():
        try:
            array = _as_array(_in_order(values, rows))
        except (TypeError, ValueError):
            raise ScoresError(function=function, why=f"{metric} is not an array of numbers") from None
        if array.shape != (rows,):
            dropped = _dropped(values, rows, place_of)
            why = f"{metric} has the shape {array.shape}, and there are {rows} rows{dropped}"
            raise ScoresError(function=function, why=why)
        checked[str(metric)] = array
    return checked


def _in_order(values: object, rows: int) -> object:
    """Return the scores in the order of the rows.

    A pandas Series is sorted by its index, because the function may have reordered the Series.
    """
    index = getattr(values, "index", None)
    if index is None or callable(index) or len(index) != rows or set(index) != set(range(rows)):
        return values
    return values.sort_index()  # type: ignore[attr-defined]


def _dropped(values: object, rows: int, place_of: Callable[[int], str]) -> str:
    """Return a text that names the rows that a function dropped.

    The text is empty if the index of the result does not show the rows.
    """
    index = getattr(values, "index", None)
    kept = set(index) if index is not None and not callable(index) else None
    if kept is None or not kept < set(range(rows)):
        return ""
    missing = sorted(set(range(rows)) - kept)
    first = "; ".join(place_of(row) for row in missing[:_MOST_PLACES])
    return f"; it dropped {len(missing)}: {first}{'; ...' if len(missing) > _MOST_PLACES else ''}"


def compare(
    spec: EvaluationSpec,
    frame: pd.DataFrame,
    candidate: Scores,
    in_service: Scores | None,
    *,
    seed: int,
    before: Sequence[Comparison] = (),
) -> tuple[Comparison, ...]:
    """Compare both models by every metric, the deciding metric first. The same seed gives the same intervals.

    `before` contains the comparisons that were made when the model in service was the candidate.

    Raises:
        ScoresError: a metric or a column that the spec names does not exist.
    """
    metric = spec.metric or next(iter(candidate))
    wanted = list(dict.fromkeys((metric, *spec.guards)))
    for scores in (candidate, *([in_service] if in_service is not None else [])):
        missing = [name for name in wanted if name not in scores]
        if missing:
            raise ScoresError(function=spec.scores, why=f"it returned no {missing[0]}; it returned {', '.join(scores)}")
    unknown = [name for name in spec.groups if name not in frame.columns]
    if unknown:
        raise ScoresError(
            function=spec.scores, why=f"the data has no column {unknown[0]}, which evaluation.groups names"
        )
    weights = _weights(len(frame), seed=seed)
    pairs = {name: _Pair.of(values, (in_service or {}).get(name)) for name, values in candidate.items()}
    first = next((each.group_rows for each in before if each.metric == metric), None)
    groups = [
        subgroups(frame, column, pairs[metric].counted, least=spec.min_group_rows, before=first)
        for column in spec.groups
    ]
    others = [name for name in candidate if name not in wanted]
    return tuple(
        _comparison(name, pairs[name], weights, groups if name == metric else []) for name in [*wanted, *others]
    )


class _Pair(NamedTuple):
    """The scores of both models by one metric. The number zero replaces an ignored score."""

    candidate: npt.NDArray[np.float64]
    in_service: npt.NDArray[np.float64] | None
    counted: npt.NDArray[np.bool_]
    left_out: LeftOut

    @classmethod
    def of(cls, mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64] | None) -> _Pair:
        has_mine = np.abs(mine) < _LARGEST  # False for nan.
        has_theirs = np.abs(theirs) < _LARGEST if theirs is not None else has_mine
        counted = has_mine & has_theirs
        left_out = LeftOut(
            candidate=int((~has_mine & (has_theirs if theirs is not None else True)).sum()),
            in_service=int((has_mine & ~has_theirs).sum()),
            both=0 if theirs is None else int((~has_mine & ~has_theirs).sum()),
            first=tuple(int(row) + 1 for row in np.flatnonzero(~counted)[:_FIRST_ROWS]),
        )
        zeroed = None if theirs is None else np.where(counted, theirs, 0.0)
        return cls(np.where(counted, mine, 0.0), zeroed, counted, left_out)


def _comparison(metric: str, pair: _Pair, weights: _Resamples, groups: Sequence[Subgroups]) -> Comparison:
    candidate, in_service, counted, left_out = pair
    if not counted.any():
        return Comparison(metric=metric, candidate=None, left_out=left_out)
    value, mine = float(candidate[counted].mean()), weights.means(candidate, counted)
    facts: dict[str, Any] = {
        "metric": metric,
        "candidate": _interval(value, mine),
        "left_out": left_out,
        "group_rows": {name: count for each in groups for name, count in each.rows.items()},
        "group_notes": tuple(note for each in groups for note in each.notes),
    }
    if in_service is not None:
        other, theirs = float(in_service[counted].mean()), weights.means(in_service, counted)
        facts["in_service"] = _interval(other, theirs)
        facts["gain"] = _interval(float(_gains(np.array(value), np.array(other))), _gains(mine, theirs))
        facts["groups"] = {
            name: float(gain)
            for each in groups
            for name, gain in zip(each.names, _gains(each.means(candidate), each.means(in_service)), strict=True)
        }
    return Comparison(**facts)


class _Resamples(NamedTuple):
    """Resamples of the rows: how often each resample draws each unit of rows."""

    unit_of: npt.NDArray[np.int64]
    """The unit of each row."""
    units: int
    counts: npt.NDArray[np.float64]
    """The counts by resample and unit."""

    def means(self, values: npt.NDArray[np.float64], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Return the mean over the counted rows of each resample.

        All arrays of values must have the same counted rows. If a resample has no counted rows, its mean is nan.
        """
        sums = np.bincount(self.unit_of, weights=values, minlength=self.units)
        sizes = np.bincount(self.unit_of, weights=counted, minlength=self.units)
        with np.errstate(invalid="ignore"):
            means: npt.NDArray[np.float64] = (self.counts @ sums) / (self.counts @ sizes)
        return means


def _weights(rows: int, *, seed: int) -> _Resamples:
    random = np.random.default_rng(seed)
    units = min(rows, _MOST_UNITS)
    unit_of = random.permutation(rows) % units
    counts = random.multinomial(units, np.full(units, 1 / units), size=_RESAMPLES).astype(np.float64)
    return _Resamples(unit_of, units, counts)


def _as_array(values: Any) -> npt.NDArray[np.float64]:
    # In a pandas column, missing values may be of a type that numpy does not convert to nan.
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan))


def _gains(candidate: npt.NDArray[np.float64], in_service: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the gain of the candidate, as a share of the metric of the model in service."""
    with np.errstate(over="ignore"):
        gains = (in_service - candidate) / np.where(in_service == 0, 1.0, np.abs(in_service))
    return np.asarray(np.clip(gains, -_MOST_GAIN, _MOST_GAIN))


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    low, high = np.nanpercentile(resampled, _INTERVAL)
    return Interval(value=value, low=float(low), high=float(high))


class Subgroups(NamedTuple):
    """The subgroups of one column that are compared."""

    names: Sequence[str]
    of_row: npt.NDArray[np.int64]
    """The subgroup of each row, as an index of `names`. The value is -1 for a row outside all compared subgroups."""
    rows: Mapping[str, int]
    """Number of rows of each value, also of values that are not compared."""
    notes: Sequence[str]
    """Sentences about values that are new or missing, or that have too few rows."""

    def means(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the mean of each subgroup."""
        is_compared, count = self.of_row >= 0, len(self.names)
        mine = self.of_row[is_compared]
        means: npt.NDArray[np.float64] = np.bincount(mine, values[is_compared], count) / np.bincount(mine, None, count)
        return means


def subgroups(
    frame: pd.DataFrame,
    column: str,
    counted: npt.NDArray[np.bool_],
    *,
    least: int,
    before: Mapping[str, int] | None = None,
) -> Subgroups:
    """Return the subgroups of a column: the values with at least `least` counted rows.

    Values with fewer rows form one joint subgroup. `before` contains the number of rows of each value when the model in
    service was evaluated. None means that these numbers are unknown.
    """
    names, codes = _values(frame[column], column)
    counts = np.bincount(codes[counted], minlength=len(names))
    order = [int(code) for code in np.argsort(-counts, kind="stable") if counts[code]]
    large, small = [code for code in order if counts[code] >= least], [code for code in order if counts[code] < least]
    rows = {names[code]: int(counts[code]) for code in order[:_MOST_RECORDED]}
    compared, notes = [names[code] for code in large], list[str]()
    index = np.full(len(names) + 1, -1, dtype=np.int64)
    index[large] = np.arange(len(large))
    if small:
        are_compared = len(small) > 1 and sum(counts[code] for code in small) >= least
        if are_compared:
            index[small] = len(compared)
            compared.append(f"{column} is one of {len(small):,} values with fewer than {least:,} rows each")
        problem = "too few rows to be compared alone" if are_compared else "too few rows to be compared"
        notes.append(f"{problem}: {_listed([_with_rows(names[code], int(counts[code])) for code in small])}")
    of_row = np.where(counted, index[codes], -1)
    return Subgroups(compared, of_row, rows, (*notes, *_changes(column, rows, before)))


def _values(column: pd.Series[Any], name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names of the values, and for each row the index of its value. The last name is for missing values."""
    import pandas as pd

    # Objects are compared by their text, because lists have no hash, and 1 would be the same value as True.
    is_objects = column.dtype == object
    codes, _ = pd.factorize(column.map(_with_type, na_action="ignore") if is_objects else column)
    _, first = np.unique(codes, return_index=True)
    values = [column.iloc[row] for row in first if codes[row] >= 0]
    alike = Counter(map(str, values))
    shown = (f"{value} ({type(value).__name__})" if alike[str(value)] > 1 else str(value) or "''" for value in values)
    names = [*(f"{name}={each}" for each in shown), f"{name} is missing"]
    return names, np.where(codes < 0, len(values), codes).astype(np.int64)


def _with_type(value: object) -> str:
    return f"{type(value).__name__} {value}"


def _changes(column: str, rows: Mapping[str, int], before: Mapping[str, int] | None) -> Iterator[str]:
    if not before:
        return
    own = (f"{column}=", f"{column} is missing")
    earlier = {name: count for name, count in before.items() if name.startswith(own)}
    new = [_with_rows(name, count) for name, count in rows.items() if name not in earlier]
    if new and earlier and len(earlier) < _MOST_RECORDED:
        yield f"new since the model in service was evaluated: {_listed(new)}"
    gone = [f"{name} ({count:,} rows then)" for name, count in earlier.items() if name not in rows]
    if gone and len(rows) < _MOST_RECORDED:
        yield f"gone since the model in service was evaluated: {_listed(gone)}"


def _with_rows(name: str, count: int) -> str:
    return f"{name} ({count:,} {'row' if count == 1 else 'rows'})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"{more:,} more"] if more > 0 else [])])
