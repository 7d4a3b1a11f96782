"""How a model is spread over ranks: replicated by DistributedDataParallel, unless its recipe has sharded it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from segue.checkpoints.sharded import is_sharded, whole
from segue.trainer.ranks import Ranks


def spread(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """The module to call in training. What a recipe has wrapped or sharded itself stays as it is."""
    if ranks.count == 1 or isinstance(model, DistributedDataParallel) or any(map(is_sharded, model.parameters())):
        return model
    # It must sum in the same order in every attempt, or no resume could be exact. By default it deals its buckets out
    # anew after the first step; looking for unused parameters keeps them as they are, and allows such recipes.
    devices = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model, device_ids=devices, find_unused_parameters=True)


def bare(model: nn.Module) -> nn.Module:
    """The recipe's own module, whose names do not depend on how it is spread."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def total_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all of them together; where some are sharded, every rank must call it."""
    sharded = [tensor for tensor in tensors if is_sharded(tensor)]
    if not sharded:
        return torch.nn.utils.get_total_norm(tensors)
    plain = [tensor for tensor in tensors if not is_sharded(tensor)]
    norms = [whole(torch.nn.utils.get_total_norm(part)) for part in (plain, sharded) if part]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
