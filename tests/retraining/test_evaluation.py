"""Candidate against the model in service: intervals that hold, guards, subgroups, and reasons in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from segue.errors import ScoresError
from segue.parsing import parsed
from segue.retraining.evaluation import checked_scores, compare
from segue.retraining.promotion import decide
from segue.retraining.promotion_spec import EvaluationSpec

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
    assert found.groups.keys() == {"stops=0", "stops=1", "stops is missing"}
    assert found.group_rows == {"stops=1": 2000, "stops=0": 1000, "stops is missing": 1000}


VALUES_OF_SUBGROUPS = {
    "null text": [None] * 600 + ["north"] * 1200 + ["south"] * 1200,
    "null category": pd.Categorical([None] * 600 + ["north"] * 1200 + ["south"] * 1200),
    "null integer": pd.array([None] * 600 + [1] * 1200 + [2] * 1200, dtype="Int64"),
    "nan": [np.nan] * 600 + [1.0] * 1200 + [2.0] * 1200,
    "no time": pd.to_datetime([None] * 600 + ["2026-01-01"] * 1200 + ["2026-01-02"] * 1200),
    "no truth": pd.array([None] * 600 + [True] * 1200 + [False] * 1200, dtype="boolean"),
    "empty text": [""] * 600 + ["north"] * 1200 + ["south"] * 1200,
    "text and number": ["1"] * 600 + [1] * 1200 + [True] * 1200,
    "lists": [[1]] * 600 + [[1, 2]] * 1200 + [None] * 1200,
    "many rare values": [f"c{number % 60}" for number in range(600)] + ["north"] * 1200 + ["south"] * 1200,
}


@pytest.mark.parametrize("kind", VALUES_OF_SUBGROUPS)
def test_no_row_is_outside_every_subgroup(kind):
    frame = pd.DataFrame({"region": pd.Series(VALUES_OF_SUBGROUPS[kind])})
    spread = np.linspace(0, 0.01, 3000)
    mine, theirs = np.repeat([3.0, 0.5], [600, 2400]) + spread, np.repeat([1.5, 1.2], [600, 2400]) + spread
    (found,), promotion = judged(spec_of(groups=["region"]), {"mae": mine}, {"mae": theirs}, frame)
    assert not promotion.is_promoted
    assert promotion.why.startswith("mae is worse by 99.93 % where region")
    assert sum(found.group_rows.values()) == 3000


def test_subgroups_that_are_small_new_or_gone_are_said():
    scores = {"mae": errors(10)}
    values = {"then": ["a"] * 2000 + ["b"] * 1900 + ["c"] * 100, "now": ["a"] * 3950 + ["d"] * 49 + [None]}
    then, now = (pd.DataFrame({"x": values[each]}) for each in ("then", "now"))
    first = compare(spec_of(groups=["x"]), then, scores, None, seed=0)
    assert decide(spec_of(), first).why == "no model was in service"
    found = compare(spec_of(groups=["x"]), now, scores, scores, seed=0, before=first)
    assert found[0].groups == {"x=a": 0.0}
    assert found[0].group_notes == (
        "too few rows to be compared: x=d (49 rows), x is missing (1 row)",
        "new since the model in service was evaluated: x=d (49 rows), x is missing (1 row)",
        "gone since the model in service was evaluated: x=b (1,900 rows then), x=c (100 rows then)",
    )
    assert decide(spec_of(min_gain=-1), found).why.endswith(f"; {'; '.join(found[0].group_notes)}")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308], ids=str)
@pytest.mark.parametrize("metric", ["mae", "late", "other"])
def test_a_candidate_without_a_number_in_some_rows_is_not_promoted(bad, metric):
    before = {name: errors(10, rows=200) for name in ("mae", "late", "other")}
    candidate = {name: values * 0.5 for name, values in before.items()}
    candidate[metric][[6, 8]] = bad
    comparisons, promotion = judged(spec_of(guards={"late": 0.1}), candidate, before)
    assert promotion == (False, f"{metric} is not finite in 2 rows (7, 9)")
    left_out = {each.metric: each.left_out.candidate for each in comparisons}
    assert left_out == {"mae": 0, "late": 0, "other": 0} | {metric: 2}
    assert judged(spec_of(), candidate, None)[1] == (False, f"{metric} is not finite in 2 rows (7, 9)")


def test_rows_without_a_number_of_the_model_in_service_are_left_out_and_named():
    before, candidate = {"mae": errors(10, rows=200)}, {"mae": errors(10, rows=200) * 0.97}
    before["mae"][:40] = np.nan
    (found,), promotion = judged(spec_of(), candidate, before)
    assert promotion.is_promoted
    assert promotion.why.endswith("mae was compared without 40 rows (1, 2, 3, 4, 5, ...): it is not finite there")
    assert found.gain.value == pytest.approx(0.03)
    candidate["mae"][:40] = np.nan
    assert judged(spec_of(), candidate, before)[1].is_promoted
    candidate["mae"][40] = np.nan
    assert judged(spec_of(), candidate, before)[1].why.startswith("mae is not finite in 1 row;")


@pytest.mark.matrix
def test_a_model_in_service_without_any_number_is_replaced_by_one_that_has_them_all():
    nothing = {"mae": np.full(ROWS, np.nan)}
    replaced = (True, "mae of the model in service is not finite in any row")
    assert judged(spec_of(), {"mae": errors(10)}, nothing)[1] == replaced
    assert judged(spec_of(), nothing, nothing)[1] == (False, "mae is not finite in any row")
    assert not judged(spec_of(), nothing, {"mae": errors(10)})[1].is_promoted
    assert not judged(spec_of(), nothing, None)[1].is_promoted


def test_a_fault_of_the_candidate_counts_whatever_its_metrics_are():
    comparisons, _ = judged(spec_of(), {"mae": errors(10) * 0.5}, {"mae": errors(10)})
    found = decide(spec_of(), comparisons, faults=["its weights are nan in 1 of 2 tensors: bias"])
    assert found == (False, "its weights are nan in 1 of 2 tensors: bias")


@pytest.mark.parametrize(
    "values",
    [
        pd.array([1.0, None], dtype="Float64"),
        pd.Series([1.0, None], dtype="Float64"),
        np.ma.masked_array([1, 7], mask=[False, True]),
    ],
    ids=["array", "series", "masked"],
)
def test_missing_and_masked_scores_are_no_numbers(values):
    found = checked_scores({"mae": values}, rows=2, function="flights:scores")
    assert found["mae"][0] == 1.0
    assert np.isnan(found["mae"][1])


def test_scores_that_a_function_has_sorted_are_those_of_their_rows():
    sorted_by_value = pd.Series([3.0, 1.0, 2.0]).sort_values()
    assert [*sorted_by_value.index] == [1, 2, 0]
    found = checked_scores({"mae": sorted_by_value}, rows=3, function="flights:scores")
    assert found["mae"].tolist() == [3.0, 1.0, 2.0]


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
        ({"mae": ["a"]}, "mae is not an array of numbers"),
        ({"mae": [1.0]}, r"mae has the shape \(1,\), and there are 2 rows"),
        ({"mae": pd.Series([1.0], index=[1])}, r"mae has the shape \(1,\), and there are 2 rows; it dropped 1: 0"),
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
