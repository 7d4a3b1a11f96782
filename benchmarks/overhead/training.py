"""One training in four loops: bare and under segue, with a data loader and with batches that are drawn by hand.

Every loop calls the same `loss`, which counts the steps. A step is the time between two calls, so all work of a loop
between two calls counts. After each turn of some steps the process waits for its next one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segue
from benchmarks.overhead.turns import Counter

FEATURES, BATCH = 64, 64
_counters: list[Counter] = []


def build(config: dict[str, Any]) -> segue.Recipe:
    """The recipe. Config: width, samples, turns (a folder), turn_steps."""
    take_turns(config["turns"], config["turn_steps"])
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
    """The loss of a batch; counts the step."""
    _counters[0].step_begins()
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def take_turns(folder: str, steps: int) -> None:
    """Train in turns of this number of steps."""
    _counters.append(Counter(Path(folder), steps=steps))


def options() -> argparse.ArgumentParser:
    """The options of every loop that is a script."""
    parser = argparse.ArgumentParser()
    for name in ("steps", "width", "samples", "turn-steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--turns", required=True)
    return parser


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    """Make one step, and return its loss in the form that a script prints."""
    optimizer.zero_grad(set_to_none=True)
    value = loss(model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return value.item()


def main() -> None:
    """Train in a bare loop, or in a session. Both are the same script, which runs bare outside a segment."""
    parser = options()
    parser.add_argument("--loader", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    take_turns(given.turns, given.turn_steps)
    model, optimizer, loader = parts(given.width, given.samples)
    if given.loader:
        done = 0
        while done < given.steps:
            for batch in loader:
                update(model, optimizer, batch)
                done += 1
                if done == given.steps:
                    return
    inputs, targets = data_of(given.samples)
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        for _ in run.steps(given.steps):
            chosen = torch.randint(given.samples, (BATCH,))
            run.report(loss=update(model, optimizer, (inputs[chosen], targets[chosen])))


if __name__ == "__main__":
    main()
