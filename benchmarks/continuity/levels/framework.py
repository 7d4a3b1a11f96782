"""A script of the benchmark as a Lightning module: `python framework.py RECIPE`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import lightning
import torch
from torch import nn

from segue.integrations.lightning import ResumableLoader, SegueCallback

_STEPS = 1000


class Module(lightning.LightningModule):
    """A Lightning module with a model, its loss, and the other work of a script in a step."""

    def __init__(self, model: nn.Module, loss: Any, after_step: Any, optimizer: Any, scheduler: Any) -> None:
        super().__init__()
        self.model, self.loss, self.after_step = model, loss, after_step
        self._optimizer, self._scheduler = optimizer, scheduler

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        value: torch.Tensor = self.loss(self.model, batch)
        return value

    def on_train_batch_end(self, *_: Any) -> None:
        if self.after_step is not None:
            self.after_step(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        if self._scheduler is None:
            return self._optimizer
        return [self._optimizer], [{"scheduler": self._scheduler, "interval": "step"}]


def main() -> None:
    """Train the result of the recipe function with Lightning's Trainer."""
    module, _, name = sys.argv[1].partition(":")
    made = getattr(importlib.import_module(module), name)({})
    lightning_module = Module(made.model, made.loss, made.after_step, made.optimizer, made.scheduler)
    callback = SegueCallback()
    trainer = lightning.Trainer(
        max_steps=_STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(lightning_module, ResumableLoader(made.data), ckpt_path=callback.checkpoint)


if __name__ == "__main__":
    main()
