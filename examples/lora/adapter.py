"""Low-rank adapters for the linear layers of a frozen model (Hu et al., "LoRA", 2021)."""

from __future__ import annotations

import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer with a trainable change of low rank, which is zero at the beginning."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + x @ self.down.T @ self.up.T


def adapt(model: nn.Module, *, layers: str, rank: int) -> list[nn.Parameter]:
    """Freeze the model and adapt its layers of this name; return the parameters that are trained."""
    model.requires_grad_(False)
    owners = [module for module in model.modules() if isinstance(getattr(module, layers, None), nn.Linear)]
    for owner in owners:
        setattr(owner, layers, Adapted(getattr(owner, layers), rank))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
