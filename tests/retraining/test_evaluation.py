"""Candidate against the model in service: intervals that hold, guards, subgroups, and reasons in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from segue.errors import ScoresError
from segue.parsing import parsed
from segue.retraining.evaluation import checked_scores, compare, decide
from segue.retraining.spec import EvaluationSpec

ROWS = 4000


def spec_of(**fields) -> EvaluationSpec:
    return parsed(EvaluationSpec, {"scores": "flights:scores"} | fields, source="retrain.toml")


def judged(spec, candidate, in_service, frame=None):
    frame = pd.DataFrame(index=range(len(next(iter(candidate.values()))))) if frame is None else frame
    comparisons = compare(spec, frame, candidate, in_service, seed=0)
    return comparisons, decide(spec, comparisons)


def errors(mean: float, *, seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).gamma(4.0, mean / 4.0, size=rows)


def test_the_first_model_is_promoted_with_its_metrics():
    (comparison,), promotion = judged(spec_of(), {"mae": errors(10)}, None)
    assert promotion == (True, "no model was in service")
    assert comparison.candidate.low < 10 < comparison.candidate.high
    assert (comparison.in_service, comparison.gain) == (None, None)


def test_a_candidate_that_is_better_on_the_same_rows_is_promoted():
    before = errors(10)
    (comparison,), promotion = judged(spec_of(), {"mae": before * 0.97}, {"mae": before})
    assert promotion == (True, "mae is better by 3.00 %, 95 % interval 3.00 % to 3.00 %")
    assert comparison.gain.value == pytest.approx(0.03)


@pytest.mark.parametrize(("min_gain", "is_promoted"), [(0.0, False), (0.02, False), (-0.05, True)])
def test_a_gain_that_may_be_chance_counts_by_its_lower_end(min_gain, is_promoted):
    in_service = errors(10)
    candidate = np.random.default_rng(1).permutation(in_service)
    (comparison,), promotion = judged(spec_of(min_gain=min_gain), {"mae": candidate}, {"mae": in_service})
    assert comparison.gain.low < 0 < comparison.gain.high
    assert promotion.is_promoted is is_promoted
    if not is_promoted:
        assert f"its lower end must reach {100 * min_gain:.2f} %" in promotion.why


@pytest.mark.matrix
def test_a_guard_holds_back_a_candidate_that_is_better_otherwise():
    before = errors(10)
    candidate, in_service = {"mae": before * 0.9, "late": before * 1.04}, {"mae": before, "late": before}
    assert judged(spec_of(guards={"late": 0.05}), candidate, in_service)[1].is_promoted
    _, promotion = judged(spec_of(guards={"late": 0.03}), candidate, in_service)
    assert promotion == (False, "late is worse by 4.00 %; at most 3.00 % is accepted")


@pytest.mark.matrix
def test_a_subgroup_that_gets_worse_holds_it_back_unless_it_is_small():
    before = errors(10)
    frame = pd.DataFrame({"carrier": np.where(np.arange(ROWS) < 300, "AA", "UA")})
    candidate = {"mae": np.where(frame["carrier"] == "AA", before * 1.2, before * 0.9)}
    (comparison,), promotion = judged(spec_of(groups=["carrier"]), candidate, {"mae": before}, frame)
    assert comparison.groups["carrier=AA"] == pytest.approx(-0.2)
    assert promotion == (False, "mae is worse by 20.00 % where carrier=AA; at most 5.00 % is accepted")
    assert judged(spec_of(groups=["carrier"], min_group_rows=301), candidate, {"mae": before}, frame)[1].is_promoted
    assert judged(spec_of(groups=["carrier"], max_group_loss=0.21), candidate, {"mae": before}, frame)[1].is_promoted


def test_a_subgroup_column_with_nulls_is_read():
    frame = pd.DataFrame({"stops": pd.array([0, 1, None, 1] * 1000, dtype="Int64")})
    (found,), _ = judged(spec_of(groups=["stops"]), {"mae": errors(10)}, {"mae": errors(10, seed=1)}, frame)
    assert set(found.groups) == {"stops=0", "stops=1"}


def test_the_metric_that_decides_comes_first_and_all_others_are_kept():
    scores = {"rmse": errors(3), "mae": errors(10), "late": errors(1)}
    comparisons, _ = judged(spec_of(metric="mae", guards={"late": 0.1}), scores, scores)
    assert [each.metric for each in comparisons] == ["mae", "late", "rmse"]


@pytest.mark.matrix
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(200):
        (comparison,), _ = judged(spec_of(), {"mae": errors(10, seed=seed, rows=200)}, None)
        covered += comparison.candidate.low < 10 < comparison.candidate.high
    assert 180 <= covered <= 198


@pytest.mark.matrix
def test_the_interval_of_many_rows_has_the_width_that_their_spread_gives():
    values = errors(10, rows=300_001)
    (comparison,), _ = judged(spec_of(), {"mae": values}, None)
    width = comparison.candidate.high - comparison.candidate.low
    assert width == pytest.approx(2 * 1.96 * values.std() / np.sqrt(len(values)), rel=0.1)


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [300, 28_000])
def test_every_row_counts_in_the_interval(rows):
    scores = np.zeros(rows)
    scores[-1] = 1.0  # The only row with an error: an interval of some of the rows only would not know of it.
    for seed in range(8):
        frame = pd.DataFrame(index=range(rows))
        (found,) = compare(spec_of(), frame, {"mae": scores}, None, seed=seed)
        assert found.candidate.high > 0


def test_the_same_scores_give_the_same_intervals():
    scores = {"mae": errors(10)}
    assert judged(spec_of(), scores, scores)[0] == judged(spec_of(), scores, scores)[0]


@pytest.mark.matrix
def test_a_model_in_service_without_errors_is_not_divided_by():
    zero = np.zeros(ROWS)
    _, promotion = judged(spec_of(), {"mae": errors(1)}, {"mae": zero})
    assert not promotion.is_promoted
    assert judged(spec_of(), {"mae": zero}, {"mae": zero})[1].is_promoted


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        (None, "it did not return a dict of arrays by metric"),
        ({}, "it did not return a dict of arrays by metric"),
        ({"mae": ["a"]}, "mae is no array of numbers"),
        ({"mae": [1.0]}, r"mae has the shape \(1,\), and there are 2 rows"),
        ({"mae": pd.Series([1.0], index=[1])}, r"mae has the shape \(1,\), and there are 2 rows; it dropped 1: 0"),
        ({"mae": [1.0, np.nan]}, "mae is not finite in 1 rows"),
    ],
)
def test_scores_that_are_none_are_refused_with_the_reason(scores, why):
    with pytest.raises(ScoresError, match=rf"flights:scores: {why}\. Fix: return"):
        checked_scores(scores, rows=2, function="flights:scores")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"metric": "rmse"}, "it returned no rmse; it returned mae"),
        ({"guards": {"late": 0.1}}, "it returned no late; it returned mae"),
        ({"groups": ["carrier"]}, "the data has no column carrier, which evaluation.groups names"),
    ],
)
def test_what_the_spec_names_must_be_there(fields, why):
    scores = {"mae": errors(10)}
    with pytest.raises(ScoresError, match=why):
        judged(spec_of(**fields), scores, scores)
