"""The tables of figures in docs/benchmarks.md: what was recorded, beside its target."""

from __future__ import annotations

import json

import pytest

from benchmarks.common.figure_tables import TABLES
from benchmarks.common.figures import Column, Figure, FigureTable, found_in, shown
from benchmarks.common.recorded import RECORDED, page_with_figures, record, runs_of

ABOUT = {"date": "2026-11-29T10:00:00+00:00", "size": "whole", "cores": 2, "processor": "P", "load before": 3.0}
NOW = {"date": "2026-11-30T10:00:00+00:00", "load before": 0.1}


def report_with(**benchmarks):
    runs = {
        name: NOW | {"options": ["--rounds", "2"], "exit_code": 1, "seconds": 61.2, "figures": figures}
        for name, figures in benchmarks.items()
    }
    return {"about": ABOUT | {"torch": "2.13.0"}, "benchmarks": runs}


@pytest.mark.parametrize("name", TABLES)
def test_every_figure_of_segue_was_recorded(name):
    recorded = json.loads(RECORDED.read_text())[name]
    for table in TABLES[name]:
        for column in (column for column in table.columns if column.has_targets):
            missing = [figure.what for figure in table.figures if column.path_of(figure) not in recorded["figures"]]
            assert missing == []


def test_a_figure_that_misses_its_target_is_bold_and_one_that_meets_it_is_not():
    rows = (
        Figure("stall", "a", most=1.2),
        Figure("speed", "b", least=4_800),
        Figure("lost", "c", most=0),
        Figure("same", "d", least=True),
        Figure("seconds", "e"),
    )
    table = FigureTable(rows, (Column("segue", has_targets=True), Column("other", "peers/other")))
    bad = {"a": 1.2114, "b": 4_799.4, "c": 1, "d": False, "e": 1234.5, "peers/other/a": 8.0}
    assert table.as_markdown(bad).splitlines()[2:] == [
        "| stall | <= 1.2 | **1.211** | 8 |",
        "| speed | >= 4,800 | **4,799** | - |",
        "| lost | 0 | **1** | - |",
        "| same | yes | **no** | - |",
        "| seconds | - | 1,234 | - |",
    ]
    assert table.as_markdown({}).count("**-**") == 4
    good = {"a": 1.2, "b": 4_800, "c": 0, "d": True}
    assert "**" not in table.as_markdown(good)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (2.0, "2"), (99.96, "99.96"), (123.4, "123"), (1.0114, "1.011"), (True, "yes"), ("x", "-")],
)
def test_values_have_three_or_four_digits(value, text):
    assert shown(value) == text


def test_a_figure_is_found_by_names_and_by_a_value_of_its_element():
    report = {"growth": [{"what": "a", "exponent": 0.5}, {"what": "b", "exponent": 1.5}], "peers": {"x": {"y": 1}}}
    assert found_in(report, "growth/b/exponent") == 1.5
    assert found_in(report, "peers/x/y") == 1
    assert found_in(report, "growth/c/exponent") is None
    assert found_in(report, "peers/x/y/z") is None


def test_recorded_figures_replace_those_of_the_same_benchmark_alone(tmp_path):
    file = tmp_path / "recorded.json"
    assert record(report_with(fencing={"worlds": 7}, dispatch={"requests": 1}), file=file) == ["fencing", "dispatch"]
    assert record(report_with(fencing={"worlds": 8}, dispatch={}), file=file) == ["fencing"]
    page = "a\n<!-- figures of fencing: begin -->\nold\n<!-- figures: end -->\nb\n"
    written = page_with_figures(page, file=file)
    assert page_with_figures(written, file=file) == written
    assert "| worlds | - | 8 |" in written
    assert "`python -m benchmarks fencing --rounds 2` on 2026-11-30, exit code 1 after 61 s." in written
    assert "2 cores (P), load 0.1 before the start. Versions: torch 2.13.0." in written
    assert json.loads(file.read_text())["dispatch"]["figures"] == {"requests": 1}


def test_a_benchmark_without_a_table_is_not_recorded():
    assert runs_of(report_with(continuity={"axes": {}})) == {}
