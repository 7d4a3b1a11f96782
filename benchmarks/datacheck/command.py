"""`python -m benchmarks datacheck`: compares the check of a window of data with Great Expectations on one frame."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from benchmarks.common.child import child_environment
from benchmarks.common.terminal import progress
from benchmarks.datacheck.worker import SUITE
from segue.data.frames import facts_of
from segue.data.tables.column_types import layout_of
from segue.reports.console import console, show_json
from segue.reports.tables import rows_table
from segue.retraining.gate.columns import columns_of
from segue.retraining.gate.suite import starter_suite
from segue.retraining.spec import WindowFile
from segue.spec import Reading

_FILES = 10
_HOW = ("segue", "frame")


def datacheck(
    rows: Annotated[
        int, typer.Option(min=1_000, help="Number of rows, in ten Parquet files of 18 columns.")
    ] = 5_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which medians are shown.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the time and memory of the data check, in turn with the same suite on all rows as one pandas frame."""
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as name, progress() as say:
        folder = Path(name)
        say(f"writing {rows:,} rows")
        expectations = _make(folder, rows)
        found: dict[str, list[dict[str, Any]]] = {how: [] for how in _HOW}
        for number in range(rounds):
            for how in _HOW if number % 2 == 0 else reversed(_HOW):
                found[how].append(_measure(how, folder))
                say(f"round {number + 1} of {rounds}: {how} took {found[how][-1]['seconds']:.1f} s")
    facts = [_median(how, runs) for how, runs in found.items()]
    if as_json:
        show_json({"rows": rows, "expectations": expectations, "rounds": rounds, "results": facts})
    else:
        console.print(f"{rows:,} rows, 18 columns, {expectations} expectations, medians of {rounds}")
        console.print(rows_table(facts))


def _measure(how: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.datacheck.worker", how, str(folder)]
    done = subprocess.run(command, env=child_environment(), check=True, capture_output=True, text=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def _median(how: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {
        "check": {"segue": "segue", "frame": "one frame"}[how],
        "seconds": round(medians["seconds"], 1),
        "processor seconds": round(medians["processor_seconds"], 1),
        "peak GB": round(medians["peak_bytes"] / 1e9, 2),
    }


def _make(folder: Path, rows: int) -> int:
    """Write the files and a suite that the files meet. Return the number of expectations in the suite."""
    random = np.random.default_rng(0)
    files, local = [], {}
    for number in range(_FILES):
        path = folder / f"{number:02}.parquet"
        count = rows // _FILES
        _frame(random, count).to_parquet(path)
        facts = {"path": str(path), "sha256": "0" * 64, "size_bytes": 1, "rows": count}
        files.append(WindowFile(**facts, period=path.name, is_held_back=False))
        local[str(path)] = path
    layout = layout_of([(path, facts_of(Path(path), name=path)) for path in local], Reading())
    with columns_of(files, local, layout.columns) as columns:
        suite = starter_suite(columns, name="bench")
    (folder / SUITE).write_text(json.dumps(suite))
    return len(suite["expectations"])


def _frame(random: np.random.Generator, count: int) -> pd.DataFrame:
    numbers = {f"number_{n}": random.normal(size=count).astype(np.float64) for n in range(6)}
    counts = {f"count_{n}": random.poisson(20, count).astype(np.int64) for n in range(6)}
    names = np.array([f"value {n}" for n in range(16)])
    texts = {f"text_{n}": names[random.integers(0, 16, count)] for n in range(4)}
    others = {"time": np.arange(count).astype("datetime64[s]"), "flag": random.integers(0, 2, count).astype(bool)}
    return pd.DataFrame(numbers | counts | texts | others)
