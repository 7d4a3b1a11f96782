"""One check of the data in a separate process, so that the peak memory of the check can be measured.

`python -m benchmarks.datacheck.worker (segue|frame) FOLDER`: prints seconds and bytes as JSON.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from segue.curves.great_expectations import ephemeral_context
from segue.parsing import parsed
from segue.retraining.gate.suite import read_suite
from segue.retraining.gate.window_check import check_window
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import window_of

SUITE = "suite.json"


def main() -> None:
    """Check the files of a folder with its suite."""
    how, folder = sys.argv[1], Path(sys.argv[2])
    logging.disable(logging.INFO)
    wall, processor = time.perf_counter(), time.process_time()
    rows = {"segue": _by_segue, "frame": _as_one_frame}[how](folder)
    facts = {
        "rows": rows,
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def _by_segue(folder: Path) -> int:
    """Make the window with its hashes, and check it, with Data Docs and the profiles for the drift of the next slot."""
    fields = {
        "name": "bench",
        "data": {"files": f"{folder}/*.parquet", "periods": 1_000, "held_back_periods": 0},
        "gate": {"suite": SUITE, "min_rows_share": 0.1},
        "run": {"recipe": "train:build", "steps": 1},
    }
    spec = parsed(RetrainSpec, fields, source="the benchmark")
    slot = datetime(2026, 1, 1, tzinfo=UTC)
    window, local = window_of(spec, slot)
    gate = check_window(spec, window, local, slot=slot, folder=folder, docs=folder / "docs")
    assert gate.outcome == "passed", gate.findings
    return gate.rows


def _as_one_frame(folder: Path) -> int:
    """Check as a script would: all columns of all files as one frame, and every expectation on this frame."""
    import pandas as pd

    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))], ignore_index=True)
    with ephemeral_context(None, needed_for="the benchmark") as (gx, context):
        suite = read_suite(folder / SUITE, gx)
        asset = context.data_sources.add_pandas("data").add_dataframe_asset("data")
        batch = asset.add_batch_definition_whole_dataframe("data").get_batch(batch_parameters={"dataframe": frame})
        assert all(batch.validate(each.made, result_format="SUMMARY").success for each in suite)
    return len(frame)


if __name__ == "__main__":
    main()
