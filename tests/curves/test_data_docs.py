"""Data Docs are complete and styled without internet."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from segue.curves.data_docs import completed
from segue.curves.great_expectations import Expected, validate

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of a check with one expectation that is met and one that is not, by their path in the site."""
    folder = tmp_path_factory.mktemp("docs")
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [0.5, 0.4, 99.0]})
    bound = {"column": "loss", "min_value": 0}
    expected = [
        Expected("low", "ExpectColumnValuesToBeBetween", bound | {"max_value": 1}, "The loss is low"),
        Expected("finite", "ExpectColumnValuesToBeBetween", bound | {"max_value": 1e9}, "The loss is finite"),
    ]
    found = validate({"steps": (frame, expected)}, run_id="mine", docs=folder)
    assert (found["low"].met, found["finite"].met) == (False, True)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}


def test_no_page_loads_anything(site):
    assert len(site) == 3
    for name, page in site.items():
        assert re.findall(r"<(script|link|img|iframe)\b", page) == [], name
        assert re.findall(r"url\(|@import", page) == [], name
        assert re.findall(r"\son\w+=", page) == [], name
        assert "--paper" in page, f"{name} has a style of its own"


def test_the_index_lists_what_was_checked_with_its_outcome_and_links_that_work(site):
    index = site["index.html"]
    assert "&#10007; failed" in index
    links = re.findall(r'<a href="((?:validations|expectations)/[^"]+)"', index)
    assert len(links) == 2
    assert set(links) == set(site) - {"index.html"}


def test_every_expectation_has_a_status(site):
    (page,) = (text for name, text in site.items() if name.startswith("validations/"))
    rows = [row for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if "The loss is" in row]
    assert sorted("&#10003; met" in row for row in rows) == [False, True]
    assert sorted("&#10007; failed" in row for row in rows) == [False, True]


def test_a_name_with_html_is_text_in_the_table_of_the_index():
    row = {"validation_success": "", "run_time": "2026", "run_name": HOSTILE, "_table_row_link_path": '"><b>'}
    columns = [{"field": "validation_success"}]
    script = f"<script>$('#t').bootstrapTable(Object.assign({{columns: {columns},\n data: {[row]},\n}}))</script>"
    page = completed(f'<head></head><table id="t" class="x"></table>{script}')
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert not re.search(r"<img|<b>", page)


def test_a_column_a_value_and_a_promise_with_html_are_text_on_every_page(tmp_path):
    evil = f"a | b\n# c {HOSTILE}</td><script>alert(2)</script>$x"
    frame = pd.DataFrame({"step": [1, 2, 3], evil: [HOSTILE, HOSTILE, None]})
    expected = [
        Expected("null", "ExpectColumnValuesToNotBeNull", {"column": evil}, f"No nulls in {evil}"),
        Expected("set", "ExpectColumnValuesToBeInSet", {"column": evil, "value_set": [f"{HOSTILE}2"]}, HOSTILE),
    ]
    found = validate({"rows": (frame, expected)}, run_id="mine", docs=tmp_path)
    assert not found["null"].met
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) == 3
    for path, page in pages.items():
        assert not re.search(r"<img\b|<script\b|\bonerror=[^&]*>", page), path
    assert any("&lt;img src=x" in page for page in pages.values()), "it is shown as text"
