"""A candidate against the model in service, on the same rows: intervals, subgroups, and what follows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from segue.errors import ScoresError
from segue.retraining.model_record import Comparison, Interval
from segue.retraining.spec import EvaluationSpec

if TYPE_CHECKING:
    import pandas as pd

Scores = Mapping[str, npt.NDArray[np.float64]]
"""A number for each row, by metric. Less is better."""

_RESAMPLES = 1_000
_MOST_UNITS = 10_000
"""With more rows, groups of random rows are drawn in place of rows: the intervals stay the same."""
_INTERVAL = (2.5, 97.5)
_MOST_PLACES = 5


class Promotion(NamedTuple):
    """Whether a candidate takes the place of the model in service, and why."""

    is_promoted: bool
    why: str


def checked_scores(scores: object, *, rows: int, function: str, place_of: Callable[[int], str] = str) -> Scores:
    """What the user's function returned, as arrays. `place_of` says where a row is.

    Raises:
        ScoresError: it is no dict of numbers for each row, or some of them are not finite. Rows that it dropped are
            named: without them the two models would not be compared on the same rows.
    """
    if not isinstance(scores, Mapping) or not scores:
        raise ScoresError(function=function, why="it did not return a dict of arrays by metric")
    checked = {}
    for metric, values in scores.items():
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise ScoresError(function=function, why=f"{metric} is no array of numbers") from None
        if array.shape != (rows,):
            dropped = _dropped(values, rows, place_of)
            why = f"{metric} has the shape {array.shape}, and there are {rows} rows{dropped}"
            raise ScoresError(function=function, why=why)
        if not np.isfinite(array).all():
            raise ScoresError(function=function, why=f"{metric} is not finite in {(~np.isfinite(array)).sum()} rows")
        checked[str(metric)] = array
    return checked


def _dropped(values: object, rows: int, place_of: Callable[[int], str]) -> str:
    """The rows that a function left out, in words, if what it returned still has the numbers of its rows."""
    index = getattr(values, "index", None)
    kept = set(index) if index is not None and not callable(index) else None
    if kept is None or not kept < set(range(rows)):
        return ""
    missing = sorted(set(range(rows)) - kept)
    first = "; ".join(place_of(row) for row in missing[:_MOST_PLACES])
    return f"; it dropped {len(missing)}: {first}{'; ...' if len(missing) > _MOST_PLACES else ''}"


def compare(
    spec: EvaluationSpec, frame: pd.DataFrame, candidate: Scores, in_service: Scores | None, *, seed: int
) -> tuple[Comparison, ...]:
    """Both models by every metric, the one that decides first. The same seed gives the same intervals.

    Raises:
        ScoresError: a metric or a column that the spec names is not there.
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
    others = [name for name in candidate if name not in wanted]
    return tuple(
        _comparison(name, candidate[name], None if in_service is None else in_service.get(name), weights, groups)
        for name, groups in [(metric, _groups(spec, frame)), *((name, {}) for name in [*wanted[1:], *others])]
    )


def decide(spec: EvaluationSpec, comparisons: Sequence[Comparison]) -> Promotion:
    """Whether the candidate is promoted. The first comparison is that of the metric that decides."""
    first = comparisons[0]
    if first.gain is None:
        return Promotion(is_promoted=True, why="no model was in service")
    reasons = [*_reasons_against(spec, comparisons)]
    gain = f"{first.metric} is better by {_percent(first.gain.value)}, {_range(first.gain)}"
    return Promotion(is_promoted=not reasons, why="; ".join(reasons) or gain)


def _reasons_against(spec: EvaluationSpec, comparisons: Sequence[Comparison]) -> Iterator[str]:
    first = comparisons[0]
    assert first.gain is not None
    if first.gain.low < spec.min_gain:
        least = f"its lower end must reach {_percent(spec.min_gain)}"
        yield f"the gain in {first.metric} is {_percent(first.gain.value)}, {_range(first.gain)}; {least}"
    for each in comparisons[1:]:
        allowed = spec.guards.get(each.metric)
        if allowed is not None and each.gain is not None and each.gain.value < -allowed:
            yield f"{each.metric} is worse by {_percent(-each.gain.value)}; at most {_percent(allowed)} is accepted"
    for group, gain in first.groups.items():
        if gain < -spec.max_group_loss:
            worse = f"{first.metric} is worse by {_percent(-gain)} where {group}"
            yield f"{worse}; at most {_percent(spec.max_group_loss)} is accepted"


def _comparison(
    metric: str,
    candidate: npt.NDArray[np.float64],
    in_service: npt.NDArray[np.float64] | None,
    weights: _Resamples,
    groups: Mapping[str, npt.NDArray[np.bool_]],
) -> Comparison:
    mine = weights.means(candidate)
    if in_service is None:
        return Comparison(metric=metric, candidate=_interval(float(candidate.mean()), mine))
    theirs = weights.means(in_service)
    return Comparison(
        metric=metric,
        candidate=_interval(float(candidate.mean()), mine),
        in_service=_interval(float(in_service.mean()), theirs),
        gain=_interval(_gain(float(candidate.mean()), float(in_service.mean())), _gains(mine, theirs)),
        groups={
            name: _gain(float(candidate[rows].mean()), float(in_service[rows].mean())) for name, rows in groups.items()
        },
    )


class _Resamples(NamedTuple):
    """How often each unit of rows is drawn in each resample."""

    unit_of: npt.NDArray[np.int64]
    """The unit of each row."""
    sizes: npt.NDArray[np.float64]
    """Number of rows of each unit."""
    counts: npt.NDArray[np.float64]
    """By resample and unit."""

    def means(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The mean in each resample; of the same rows for every array of values."""
        sums = np.bincount(self.unit_of, weights=values, minlength=len(self.sizes))
        means: npt.NDArray[np.float64] = (self.counts @ sums) / (self.counts @ self.sizes)
        return means


def _weights(rows: int, *, seed: int) -> _Resamples:
    random = np.random.default_rng(seed)
    units = min(rows, _MOST_UNITS)
    unit_of = random.permutation(rows) % units
    counts = random.multinomial(units, np.full(units, 1 / units), size=_RESAMPLES).astype(np.float64)
    return _Resamples(unit_of, np.bincount(unit_of, minlength=units).astype(np.float64), counts)


def _groups(spec: EvaluationSpec, frame: pd.DataFrame) -> dict[str, npt.NDArray[np.bool_]]:
    found = {}
    for column in spec.groups:
        for value, count in frame[column].value_counts().items():
            if count >= spec.min_group_rows:
                found[f"{column}={value}"] = (frame[column] == value).fillna(False).to_numpy(np.bool_)
    return found


def _gain(candidate: float, in_service: float) -> float:
    """By which share of the model in service the candidate is better."""
    return (in_service - candidate) / abs(in_service) if in_service else -candidate


def _gains(candidate: npt.NDArray[np.float64], in_service: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    gains: npt.NDArray[np.float64] = (in_service - candidate) / np.where(in_service == 0, 1.0, np.abs(in_service))
    return gains


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    low, high = np.percentile(resampled, _INTERVAL)
    return Interval(value=value, low=float(low), high=float(high))


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _range(interval: Interval) -> str:
    return f"95 % interval {_percent(interval.low)} to {_percent(interval.high)}"
