"""`python -m benchmarks.accelerator`: prints the costs of segue on one device, each figure as soon as it is known."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.accelerator.locking import measure_locking
from benchmarks.accelerator.report import Figure, facts_of, line_of
from benchmarks.accelerator.resuming import measure_resume
from benchmarks.accelerator.staging import measure_large, measure_overlapped, measure_staging
from benchmarks.accelerator.step import measure_step

SIZE_BYTES = 5_000_000_000
PARTS: dict[str, Callable[[torch.device, int], Iterator[Figure]]] = {
    "locking": measure_locking,
    "staging": measure_staging,
    "overlapped": measure_overlapped,
    "large": measure_large,
    "step": measure_step,
    "resume": measure_resume,
}


def main() -> int:
    """Exit code 0: all figures were measured, even if some exceed their limits. Without a device there is nothing to
    measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures into this file, after each one")
    parser.add_argument("--bytes", type=int, default=SIZE_BYTES, help="bytes of the state; default: 5 GB")
    parser.add_argument("--only", default=",".join(PARTS), help=f"these of {', '.join(PARTS)}")
    parser.add_argument("--on", choices=("cuda", "cpu"), default="cuda", help="cpu: a test of the benchmark itself")
    given = parser.parse_args()
    unknown = set(given.only.split(",")) - PARTS.keys()
    if unknown:
        parser.error(f"--only knows {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}")
    if given.on == "cuda" and not torch.cuda.is_available():
        _say("benchmarks of an accelerator: not measured, because this machine shows no CUDA device")
        return 0
    device = torch.device("cuda:0" if given.on == "cuda" else "cpu")
    figures: list[Figure] = []
    for part in given.only.split(","):
        for figure in PARTS[part](device, given.bytes):
            figures.append(figure)
            _say(line_of(figure))
            if given.json is not None:
                _write(given.json, facts_of(device, given.bytes), figures)
    missed = [figure.name for figure in figures if figure.is_met is False]
    _say(f"{len(figures)} figures; missed: {', '.join(missed) or 'none'}")
    return 0


def _write(file: Path, facts: dict[str, object], figures: list[Figure]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {"figures": [figure._asdict() | {"is_met": figure.is_met} for figure in figures]}
    file.write_text(json.dumps(facts | found, indent=2))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
