"""The figures of the last run of each benchmark, which docs/benchmarks.md shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.figure_tables import TABLES
from benchmarks.common.figures import found_in

RECORDED = Path(__file__).with_name("recorded.json")
_VERSIONS = ("python", "torch", "prefect")
_PEERS = {"checkpoint": ("safetensors", "boto3", "obstore"), "overhead": ("lightning", "accelerate")}
"""The packages whose versions a table shows: of all benchmarks, and of a benchmark that compares with others."""
_MARKED = re.compile(r"(<!-- figures of (\w+): begin -->\n).*?(<!-- figures: end -->)", re.DOTALL)


def record(report: Mapping[str, Any], *, file: Path = RECORDED) -> list[str]:
    """Write the figures of the tables from a report of `all` into the file. Return the names of the benchmarks that
    were recorded. Figures of other benchmarks stay as they are.

    A benchmark without figures is not recorded.
    """
    known = json.loads(file.read_text()) if file.exists() else {}
    found = runs_of(report)
    file.write_text(json.dumps(known | found, indent=1, sort_keys=True) + "\n")
    return [*found]


def runs_of(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of the tables in a report of `all`, with the circumstances of each run, by benchmark.

    A benchmark without figures is missing.
    """
    found = {}
    for name, run in report["benchmarks"].items():
        values = {path: found_in(run["figures"], path) for path in _paths(name)}
        if figures := {path: value for path, value in values.items() if value is not None}:
            about = report["about"] | {key: run[key] for key in ("date", "load before")}
            circumstances = {key: run[key] for key in ("options", "seconds", "exit_code")}
            found[name] = {"about": about, **circumstances, "figures": figures}
    return found


def _paths(name: str) -> Iterator[str]:
    for table in TABLES.get(name, ()):
        yield from table.paths()


def tables_of(run: Mapping[str, Any], name: str) -> str:
    """The tables of one run of this benchmark: where and how it was measured, and the figures."""
    return "\n\n".join((_caption(run, name), *(table.as_markdown(run["figures"]) for table in TABLES[name])))


def _caption(run: Mapping[str, Any], name: str) -> str:
    about, packages = run["about"], (*_VERSIONS, *_PEERS.get(name, ()))
    command = " ".join(("python -m benchmarks", name, *run["options"]))
    machine = f"{about['cores']} cores ({about['processor']}), load {about['load before']} before the start"
    day = about["date"].partition("T")[0]
    versions = ", ".join(f"{package} {about[package]}" for package in packages if package in about)
    ended = f"exit code {run['exit_code']} after {run['seconds']:,.0f} s"
    return f"`{command}` on {day}, {ended}. Machine: {machine}. Versions: {versions}."


def page_with_figures(page: str, *, file: Path = RECORDED) -> str:
    """A page with its tables of figures as they were recorded; unchanged if it has none."""
    known = json.loads(file.read_text())

    def written(found: re.Match[str]) -> str:
        return f"{found[1]}\n{tables_of(known[found[2]], found[2])}\n\n{found[3]}"

    return _MARKED.sub(written, page)
