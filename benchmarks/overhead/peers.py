"""The same training in the loops of Lightning and Accelerate, without logs and checkpoints."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from benchmarks.overhead.training import loss, options, parts, take_turns


def train_with_lightning(steps: int, width: int, samples: int) -> None:
    """Train with Lightning's Trainer, with everything except the loop switched off."""
    import lightning

    model, optimizer, loader = parts(width, samples)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return loss(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader)


def train_with_accelerate(steps: int, width: int, samples: int) -> None:
    """Train with the loop in Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*parts(width, samples))
    done = 0
    while done < steps:
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            value = loss(model, batch)
            accelerator.backward(value)
            optimizer.step()
            value.item()
            done += 1
            if done == steps:
                return


def main() -> None:
    """Train in the loop of one framework."""
    parser = options()
    parser.add_argument("--framework", choices=("lightning", "accelerate"), required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    take_turns(given.turns, given.turn_steps)
    train = train_with_lightning if given.framework == "lightning" else train_with_accelerate
    train(given.steps, given.width, given.samples)


if __name__ == "__main__":
    main()
