"""The time of segue's work between the steps of a training whose step does nothing, in microseconds for each part.

A real step leaves the processor's caches full of its own data. So each loop is measured twice: with a step that does
nothing, and with a step that writes more memory than the caches hold.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segue
from benchmarks.overhead.sampler import Sampler

_SKIPPED = 200
STEPS = {"warm": 20_000, "cold": 1_000}
_COLD_NUMBERS = 16_000_000
"""64 MB."""
_SAMPLES, _BATCH = 16_385, 32


class EmptyStep:
    """A step without training, which starts and stops the sampler after fixed numbers of calls."""

    def __init__(self, *, kind: str, file: Path) -> None:
        self._sampler, self._file, self._count, self._steps = Sampler(__file__), file, 0, STEPS[kind]
        self._memory = torch.zeros(_COLD_NUMBERS) if kind == "cold" else None

    def __call__(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> float:
        if self._memory is not None:
            self._memory.add_(1.0)
        self._count += 1
        if self._count == _SKIPPED:
            self._sampler.start()
        if self._count == _SKIPPED + self._steps:
            self._sampler.stop(self._file, steps=self._steps)
        return 0.5


def build(config: dict[str, Any]) -> segue.Recipe:
    """The recipe. Config: kind, file."""
    model, optimizer, inputs = _parts()
    loader = DataLoader(TensorDataset(inputs), batch_size=_BATCH, shuffle=True)
    step = EmptyStep(kind=config["kind"], file=Path(config["file"]))
    return segue.Recipe(model=model, optimizer=optimizer, data=loader, step=step)


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(_SAMPLES, 1)


def goal(kind: str) -> int:
    """Number of steps of a run of this kind."""
    return _SKIPPED + STEPS[kind] + 1


def measure_empty() -> dict[str, dict[str, Mapping[str, float]]]:
    """Microseconds of a step by part, for each kind of loop and of step."""
    from benchmarks.overhead.measure import launched, one_thread_spec

    found: dict[str, dict[str, Mapping[str, float]]] = {"recipe": {}, "session": {}}
    for kind in STEPS:
        for loop, by_kind in found.items():
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "parts.json")
                what: dict[str, Any] = {"recipe": f"{__name__}:build", "config": {"kind": kind, "file": str(file)}}
                if loop == "session":
                    what = {"program": {"command": ["python", __file__, "--kind", kind, "--file", str(file)]}}
                code = launched(one_thread_spec(Path(folder), steps=goal(kind), what=what)).wait()
                assert code == 0, f"the {loop} ended with exit code {code}"
                by_kind[kind] = json.loads(file.read_text())
    return found


def main() -> None:
    """The session's loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=tuple(STEPS), required=True)
    parser.add_argument("--file", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, optimizer, _ = _parts()
    step = EmptyStep(kind=given.kind, file=given.file)
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        for _ in run.steps(goal(given.kind)):
            run.report(loss=step(model, None, optimizer))


if __name__ == "__main__":
    main()
