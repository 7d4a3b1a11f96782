"""Pytest plugin: runs only the soak tests of one quarter, begins none after a time, and writes how each one ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.soak.quarters import quarter_of

_FILES_A_TURN = 7
TOO_LATE = "not begun: the time of the quarter was over"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak", "one quarter of the soak tests")
    group.addoption("--quarter", type=int, help="Number of the quarter, from 0.")
    group.addoption("--turn", type=int, default=0, help="How often the quarter had its turn before.")
    group.addoption("--begin-until", type=float, help="Time, in seconds since 1970, after which no test is begun.")
    group.addoption("--outcomes", type=Path, help="File for the outcomes, as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    # With xdist each worker is a pytest too: what became of all tests is known to the first process.
    if config.getoption("outcomes") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config.getoption("outcomes")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quarter = config.getoption("quarter")
    if quarter is None:
        return
    others = [item for item in items if quarter_of(item.nodeid.partition("::")[0]) not in (quarter, None)]
    kept = [item for item in items if item not in others]
    files = list(dict.fromkeys(item.path for item in kept))
    order = {file: place for place, file in enumerate(rotated(files, config.getoption("turn")))}
    items[:] = sorted(kept, key=lambda item: order[item.path])
    config.hook.pytest_deselected(items=others)


def rotated(files: list[Path], turn: int) -> list[Path]:
    """The files from another one on at each turn, so that the same ones are not always too late."""
    middle = turn * _FILES_A_TURN % max(len(files), 1)
    return files[middle:] + files[:middle]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("begin_until")
    if until is not None and time.time() > until:
        pytest.skip(TOO_LATE)


class Outcomes:
    """How each test ended: passed, failed, or why it was not run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._found.get(report.nodeid)
        if report.failed:
            self._found[report.nodeid] = "failed"
        elif report.skipped and before != "failed":
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._found[report.nodeid] = why.removeprefix("Skipped: ")
        elif report.when == "call" and before is None:
            self._found[report.nodeid] = "passed"

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._found))
