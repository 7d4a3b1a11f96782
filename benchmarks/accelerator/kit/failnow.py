"""A pytest plugin that writes each outcome at once to the file FAILNOW, so that the outcomes of an interrupted run are
known. The longest tests come first, so that all processes end at about the same time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_MOST_SHOWN = 2500
_LONGEST = ("do_not_repeat", "compiled_model", "drill_ends", "another_precision", "a_resume", "sharded", "beside")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(_LONGEST) if name in item.nodeid), len(_LONGEST))

    items.sort(key=place)
    # Each process gets a block of neighbours, which begins with one of the longest.
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for first in range(count) for item in items[first::count]]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The process that distributes the tests also calls this hook. Only that process has the file."""
    if "PYTEST_XDIST_WORKER" in os.environ or not (report.failed or report.when == "call"):
        return
    text = f"{report.outcome} {report.when} {report.nodeid} {report.duration:.1f}s\n"
    if report.failed:
        text += report.longreprtext[-_MOST_SHOWN:] + "\n----\n"
    with Path(os.environ["FAILNOW"]).open("a", encoding="utf-8") as file:
        file.write(text)
