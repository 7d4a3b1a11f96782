"""One training in four loops: bare and under segue, with a data loader and with batches that are drawn by hand.

Every loop calls the same `loss`, which notes the time: a step is what lies between two calls, so everything that a loop
does between them counts. The times are written to a file when the process ends.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segue

FEATURES, BATCH = 64, 64
_STAMPS: list[float] = []


def build(config: dict[str, Any]) -> segue.Recipe:
    """The recipe. Config: width, samples, stamps (a file)."""
    note_into(config["stamps"])
    model, optimizer, data = parts(config["width"], config["samples"])
    return segue.Recipe(model=model, optimizer=optimizer, data=data, loss=loss)


def parts(width: int, samples: int) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """Model, optimizer and data loader."""
    torch.manual_seed(0)
    inputs, targets = data_of(samples)
    model = nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, DataLoader(TensorDataset(inputs, targets), batch_size=BATCH, shuffle=True)


def data_of(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of a batch; notes the time."""
    _STAMPS.append(time.time())
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def note_into(path: str) -> None:
    """Write the times of all steps and the start of this process into a file when it ends."""
    started = psutil.Process(os.getpid()).create_time()
    atexit.register(lambda: Path(path).write_text(json.dumps({"started": started, "stamps": _STAMPS})))


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    """One step; returns its loss, as a script that prints it needs it."""
    optimizer.zero_grad(set_to_none=True)
    value = loss(model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return value.item()


def main() -> None:
    """The bare loops, and the session's: the same script, which runs bare outside a segment."""
    parser = argparse.ArgumentParser()
    for name in ("steps", "width", "samples"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--stamps", required=True)
    parser.add_argument("--loader", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    note_into(options.stamps)
    model, optimizer, loader = parts(options.width, options.samples)
    if options.loader:
        done = 0
        while done < options.steps:
            for batch in loader:
                update(model, optimizer, batch)
                done += 1
                if done == options.steps:
                    return
    inputs, targets = data_of(options.samples)
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        for _ in run.steps(options.steps):
            chosen = torch.randint(options.samples, (BATCH,))
            run.report(loss=update(model, optimizer, (inputs[chosen], targets[chosen])))


if __name__ == "__main__":
    main()
