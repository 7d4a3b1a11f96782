"""`python -m benchmarks.accelerator [--json FILE]`: six figures of one device, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.accelerator.report import Figure, facts_of, table_of
from benchmarks.accelerator.resuming import measure_resume
from benchmarks.accelerator.staging import measure_staging
from benchmarks.accelerator.step import measure_step
from segue.reports.console import console

SIZE_BYTES = 5_000_000_000


def main() -> int:
    """Exit code 0: all was measured, whether or not within its limits. Without a device there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures into this file")
    parser.add_argument("--size-bytes", type=int, default=SIZE_BYTES, help="bytes of the state; default: 5 GB")
    parser.add_argument("--on", choices=("cuda", "cpu"), default="cuda", help="cpu: a test of the benchmark itself")
    given = parser.parse_args()
    if given.on == "cuda" and not torch.cuda.is_available():
        console.print("benchmarks of an accelerator: not measured, because this machine shows no CUDA device")
        return 0
    device = torch.device("cuda:0" if given.on == "cuda" else "cpu")
    figures: list[Figure] = []
    for measure in (measure_staging, measure_resume, measure_step):
        figures += measure(device, given.size_bytes)
    console.print(table_of(figures))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"figures": [figure._asdict() | {"is_met": figure.is_met} for figure in figures]}
        given.json.write_text(json.dumps(facts_of(device, given.size_bytes) | found, indent=2))
        console.print(f"written: {given.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
