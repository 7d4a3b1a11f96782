"""The data gate: what is wrong is named with file, row and column; warnings pass; nothing is sampled."""

from __future__ import annotations

import gc
import json
import math
import weakref
from datetime import UTC, datetime, time
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segue.errors import SpecError
from segue.parsing import parsed
from segue.retraining.gate import window_check
from segue.retraining.gate.columns import Columns, columns_of
from segue.retraining.gate.suite import starter_suite
from segue.retraining.gate.window_check import check_window
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import window_of

JULY = datetime(2013, 7, 3, 6, tzinfo=UTC)
AUGUST = datetime(2013, 8, 3, 6, tzinfo=UTC)


def expect(kind: str, severity: str | None = None, **arguments) -> dict:
    return {"type": f"expect_{kind}", "kwargs": arguments} | ({"severity": severity} if severity else {})


SUITE = (
    expect("column_values_to_not_be_null", column="delay"),
    expect("column_values_to_be_between", column="delay", min_value=-100, max_value=2000),
    expect("column_values_to_be_in_set", column="carrier", value_set=["AA", "UA"]),
    expect("compound_columns_to_be_unique", column_list=["carrier", "flight"]),
    expect("table_row_count_to_be_between", min_value=30),
    expect("table_columns_to_match_ordered_list", column_list=["delay", "carrier", "flight", "time"]),
)


def month_of(month: int, *, rows: int = 20, shift: float = 0.0) -> pd.DataFrame:
    random = np.random.default_rng(month)
    return pd.DataFrame(
        {
            "delay": random.normal(10 + shift, 30, size=rows),
            "carrier": ["AA", "UA"] * (rows // 2),
            "flight": range(month * rows, (month + 1) * rows),
            "time": pd.date_range(f"2013-{month:02}-01", periods=rows, freq="h", tz="UTC"),
        }
    )


class Lake:
    """Monthly files with a suite beside them."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.suite(*SUITE)
        for month in (4, 5, 6):
            self.write(month, month_of(month))

    def suite(self, *expectations: dict) -> None:
        (self.folder / "suite.json").write_text(json.dumps({"name": "flights", "expectations": expectations}))

    def write(self, month: int, frame: pd.DataFrame) -> None:
        frame.to_parquet(self.folder / f"flights-2013-{month:02}.parquet")

    def check(self, *, slot=JULY, before=None, docs=None, files="flights-%Y-%m.parquet", **gate):
        fields = {
            "name": "flights",
            "data": {"files": f"{self.folder}/{files}", "period": "month", "periods": 2},
            "gate": {"suite": "suite.json"} | gate,
            "run": {"recipe": "train:build", "steps": 10},
        }
        spec = parsed(RetrainSpec, fields, source="retrain.toml")
        window, local = window_of(spec, slot)
        found = check_window(spec, window, local, slot=slot, folder=self.folder, before=before, docs=docs)
        return window, found


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(tmp_path)


def sentences(found) -> list[str]:
    return [finding.sentence for finding in found.findings]


@pytest.mark.matrix
def test_data_that_is_as_expected_passes(lake):
    _, found = lake.check()
    assert (found.outcome, found.expectations, found.rows, found.findings) == ("passed", 7, 60, ())
    assert set(found.profiles) == {"delay", "carrier", "flight", "time"}


@pytest.mark.matrix
def test_the_columns_of_one_expectation_are_gone_before_those_of_the_next_but_one_are_read(lake, monkeypatch):
    read, frames, held = Columns.read, [], []

    def watched(columns, names):
        held.append(sum(frame() is not None for frame in frames))
        found = read(columns, names)
        frames.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Columns, "read", watched)
    monkeypatch.setattr(window_check, "_LARGE_BYTES", 0)
    gc.disable()  # Circles of objects must not wait for a collection that comes by chance.
    try:
        lake.check()
    finally:
        gc.enable()
    assert len(held) >= 4
    assert max(held) <= 1


@pytest.mark.matrix
def test_rows_at_fault_are_named_by_file_and_row(lake):
    bad = month_of(5)
    bad.loc[[3, 7], "delay"] = [np.nan, 5000]
    bad.loc[11, "carrier"] = "??"
    lake.write(5, bad)
    _, found = lake.check()
    assert found.outcome == "failed"
    assert [(finding.expectation, finding.about, finding.places) for finding in found.findings] == [
        ("expect_column_values_to_not_be_null", "delay", ("flights-2013-05.parquet, row 3",)),
        ("expect_column_values_to_be_between", "delay", ("flights-2013-05.parquet, row 7",)),
        ("expect_column_values_to_be_in_set", "carrier", ("flights-2013-05.parquet, row 11",)),
    ]
    where = "(flights-2013-05.parquet, row 7)"
    observed = "is not met: 1 of 60 rows, e.g. 5000"
    assert sentences(found)[1] == f"delay: expect_column_values_to_be_between {observed} {where}"


def test_values_that_repeat_in_another_file_are_not_unique(lake):
    lake.write(5, month_of(4))
    _, found = lake.check()
    (finding,) = found.findings
    assert (finding.about, finding.expectation) == ("carrier, flight", "expect_compound_columns_to_be_unique")
    assert finding.places[0] == "flights-2013-04.parquet, row 0"


def test_columns_that_were_shifted_or_lost_are_named(lake):
    frame = month_of(6)
    lake.write(6, frame.assign(delay=frame["carrier"], carrier=frame["delay"]).drop(columns="flight"))
    _, found = lake.check()
    assert found.outcome == "failed"
    files = next(finding for finding in found.findings if finding.about == "files")
    assert files.places == (
        "column delay is text in flights-2013-06.parquet and a number in flights-2013-04.parquet",
        "column carrier is a number in flights-2013-06.parquet and text in flights-2013-04.parquet",
        "flights-2013-06.parquet has no column flight",
    )
    assert files.observed == "3 differences"
    assert any("the data has no column flight" in sentence for sentence in sentences(found))


@pytest.mark.parametrize(("severity", "on_failure"), [("warning", "stop"), (None, "warn")])
def test_warnings_pass_with_their_findings(lake, severity, on_failure):
    lake.suite(expect("column_values_to_be_between", severity, column="delay", max_value=-1000))
    _, found = lake.check(on_failure=on_failure)
    assert found.outcome == "warned"
    assert [finding.is_warning for finding in found.findings] == [severity == "warning"]


def test_a_condition_on_rows_may_name_any_column(lake):
    condition = {"type": "comparison", "column": {"name": "carrier"}, "operator": "==", "parameter": "AA"}
    lake.suite(expect("column_values_to_be_in_set", column="flight", value_set=[], row_condition=condition))
    _, found = lake.check()
    (finding,) = found.findings
    assert "30 of 30 rows" in finding.observed


@pytest.mark.parametrize(("hours", "outcome"), [(60 * 24, "passed"), (24, "failed")])
def test_the_newest_row_may_not_be_too_old(lake, hours, outcome):
    _, found = lake.check(time_column="time", max_age_hours=hours)
    assert found.outcome == outcome


@pytest.mark.parametrize("column", ["nosuch", "carrier"])
def test_an_age_that_cannot_be_known_is_a_finding(lake, column):
    _, found = lake.check(time_column=column, max_age_hours=10_000)
    assert [(each.about, each.expectation) for each in found.findings] == [
        ("age", "expect_column_values_to_not_be_null")
    ]


def test_a_period_with_too_few_rows_is_named(lake):
    lake.write(6, month_of(6, rows=6))
    lake.suite()
    _, found = lake.check(min_rows_share=0.5)
    (finding,) = found.findings
    assert (finding.about, finding.places) == ("rows", ("2013-06",))


def test_new_rows_that_drift_from_the_window_before_are_named_by_column(lake):
    lake.suite()
    for month in (4, 5, 6):
        lake.write(month, month_of(month, rows=2000))
    limits = {"max_psi": 0.25, "max_ks": 0.2, "drift_columns": ["delay", "carrier"]}
    before = lake.check(**limits)
    assert before[1].outcome == "passed"  # The first slot has nothing to drift from.
    lake.write(7, month_of(7, rows=2000))
    assert lake.check(slot=AUGUST, before=before, **limits)[1].outcome == "passed"
    shifted = month_of(7, rows=2000, shift=60)
    lake.write(7, shifted.assign(carrier="AA"))
    _, found = lake.check(slot=AUGUST, before=before, **limits)
    assert [(each.about, each.places) for each in found.findings] == [
        ("drift", ("delay", "carrier")),
        ("drift", ("delay",)),
    ]


def test_the_drift_of_a_file_that_was_replaced_is_that_of_its_new_rows(lake):
    lake.suite()
    for month in (4, 5, 6):
        lake.write(month, month_of(month, rows=2000))
    limits = {"max_psi": 0.25, "drift_columns": ["delay"]}
    before = lake.check(**limits)
    lake.write(5, month_of(5, rows=2000, shift=60))
    assert [each.about for each in lake.check(before=before, **limits)[1].findings] == ["drift"]


def test_a_drift_column_that_is_not_there_is_named(lake):
    lake.suite()
    limits = {"max_psi": 100.0, "drift_columns": ["delay", "delya"]}
    _, found = lake.check(before=lake.check(**limits), **limits)
    assert [(each.about, each.places) for each in found.findings] == [("drift", ("delya",))]


def test_an_age_needs_the_column_that_it_is_of(lake):
    with pytest.raises(SpecError, match=r"gate.max_age_hours: needs gate.time_column"):
        lake.check(max_age_hours=24)


def test_data_docs_show_every_expectation_on_one_page(lake, tmp_path):
    lake.suite(*SUITE, expect("column_values_to_be_between", column="delay", max_value=-1000))
    lake.check(docs=tmp_path / "docs")
    assert (tmp_path / "docs" / "index.html").exists()
    (page,) = (tmp_path / "docs" / "validations").rglob("*.html")
    text = page.read_text()
    for shown in ("delay", "carrier", "must never be null", "-1000"):
        assert shown in text


def test_a_window_of_csv_files_is_checked_like_one_of_parquet(lake):
    for path in lake.folder.glob("*.parquet"):
        pd.read_parquet(path).to_csv(path.with_suffix(".csv"), index=False)
    _, found = lake.check(files="flights-%Y-%m.csv", time_column="time", max_age_hours=60 * 24)
    assert (found.outcome, found.expectations, found.rows) == ("passed", 9, 60)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "the file is not JSON"),
        ("[]", "the file has no list `expectations`"),
        (json.dumps({"expectations": [expect("nothing")]}), "expectations.0: .*expect_nothing not found"),
        (json.dumps({"expectations": [{"kwargs": {}}]}), "expectations.0: .*type"),
        (
            json.dumps({"expectations": [expect("column_values_to_be_between", colum="delay")]}),
            "expectations.0: .*colum.*extra fields not permitted",
        ),
    ],
)
def test_a_suite_with_errors_is_refused_and_each_is_named(lake, content, problem):
    (lake.folder / "suite.json").write_text(content)
    with pytest.raises(SpecError, match=f"suite.json.*{problem}"):
        lake.check()


def test_a_suite_that_is_missing_is_named(lake):
    with pytest.raises(SpecError, match=r"nosuch\.json.*the file cannot be read"):
        lake.check(suite="nosuch.json")


@pytest.mark.matrix
def test_a_first_suite_of_columns_of_every_kind_is_met_by_them(lake):
    """Nested columns, bytes, times of day and infinite numbers cannot be compared as text or numbers are."""
    rows = 4
    table = pa.table(
        {
            "list": [[1], [2, 3], None, []],
            "struct": [{"a": 1, "b": "x"}] * rows,
            "bytes": [b"\xff", b"", b"a", None],
            "clock": [time(1), time(2), time(3), None],
            "length": pa.array([1, 2, 3, None], pa.duration("s")),
            "large": [2**53 + 1, None, 3, 4],
            "flag": [True, None, False, True],
            "infinite": [1.0, math.inf, -math.inf, math.nan],
            "amount": [Decimal("1.25"), None, Decimal("-3"), Decimal("0")],
            "kind": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "nothing": pa.nulls(rows),
            "line\nbreak": ["x"] * rows,
        }
    )
    for month in (4, 5, 6):
        pq.write_table(table, lake.folder / f"flights-2013-{month:02}.parquet")
    paths = {str(path): path for path in lake.folder.glob("*.parquet")}
    window, first = lake.check(suite=None)
    with columns_of(window.files, paths, window.columns) as columns:
        suite = starter_suite(columns, name="kinds")
    (lake.folder / "suite.json").write_text(json.dumps(suite))
    _, found = lake.check(before=(window, first), max_psi=0.1)
    assert sentences(found) == []
    assert set(found.profiles) == set(table.column_names)
    assert found.profiles["large"].kind == found.profiles["amount"].kind == "numbers"
