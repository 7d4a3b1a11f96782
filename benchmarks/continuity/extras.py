"""State next to the model that a recipe registers: sums of gradients, and a curriculum."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_FLUSH_EVERY = 4
_RATE = 1e-3


class Accumulator:
    """Sums the gradients of four steps, then moves the weights by the sum."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self.sums = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}

    def update(self, step: int) -> None:
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and bool(parameter.grad.isfinite().all()):
                self.sums[name] += parameter.grad
        if step % _FLUSH_EVERY == 0:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.sub_(_RATE * self.sums[name])
                    self.sums[name].zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict["sums"].items():
            self.sums[name].copy_(value)


class Curriculum:
    """Raises the weight of the loss every eight steps, from a given step on. Without this step, the weight never
    changes."""

    def __init__(self, first_step: int | None) -> None:
        self._first_step, self.level = first_step, 0

    @property
    def weight(self) -> float:
        return 1.0 + 0.05 * self.level

    def update(self, step: int) -> None:
        if self._first_step is not None and step >= self._first_step and (step - self._first_step) % 8 == 0:
            self.level += 1

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.level = int(state_dict["level"])
