"""Distribution of a model over ranks. If the recipe has not sharded the model, DistributedDataParallel replicates the
model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from segue.checkpoints.format.dtensor import is_sharded, sharded_types, whole
from segue.errors import RecipeError
from segue.recipe import Recipe
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.own_time import OwnTime

_NAMED_PARAMETERS, _NAMED_MODULES = nn.Module.named_parameters, nn.Module.named_modules
_USED_TWICE = "mark a variable ready only once"
"""Part of the message with which DDP says that it cannot tell when a gradient is complete."""
_COARSE = (torch.bfloat16, torch.float16)
_PLAIN = (torch.Tensor, nn.Parameter)
_layout_of = operator.attrgetter("layout")
_SURELY_WITHIN = 0.9
"""If a norm is below this share of the limit, the clip factor is 1 in every number type. bf16 has only two to three
digits."""


def spread(recipe: Recipe, ranks: Ranks, device: torch.device, *, name: str) -> Recipe:
    """Return the recipe with a distributed model. If the recipe has wrapped or sharded the model, the model is not
    changed.

    Raises:
        RecipeError: the model is distributed in a way that does not split each batch over all ranks.
    """
    if ranks.count == 1:
        return recipe
    model = recipe.model
    if any(map(is_sharded, model.parameters())):
        _refuse_other_meshes(model, ranks, name=name)
        return recipe
    for inner in model.modules():
        kind = type(inner).__name__
        if kind == "FullyShardedDataParallel":
            raise RecipeError(recipe=name, why="its model is wrapped in FSDP1.", fix="use fully_shard (FSDP2).")
        if isinstance(inner, DistributedDataParallel) and inner is not model:
            why, fix = "its model contains DistributedDataParallel.", "return the bare model; segue wraps it."
            raise RecipeError(recipe=name, why=why, fix=fix)
    if ranks.own_time is not None:
        ranks.own_time.follow(model)
    if isinstance(model, DistributedDataParallel):
        return recipe
    return replace(recipe, model=_Replicated(model, device, ranks.own_time))


def spread_again(recipe: Recipe, device: torch.device) -> Recipe:
    """If other parameters are trained now, wrap the model again. DDP sums the gradients of only those parameters that
    had `requires_grad=True` when the model was wrapped."""
    model = recipe.model
    if not isinstance(model, _Replicated) or _trained(model.module) == model.trained:
        return recipe
    if model.own_time is not None:
        model.own_time.follow(model)
    return replace(recipe, model=_Replicated(model.module, device, model.own_time))


def explained(step: Callable[..., Any], *, recipe: str) -> Callable[..., Any]:
    """Wrap a step of several ranks. If DDP raises its error about a parameter that is used twice, the wrapped step
    raises an error that names the fix.

    Raises:
        RecipeError: a parameter has two gradients in one backward pass.
    """

    def made(*args: Any, **options: Any) -> Any:
        try:
            return step(*args, **options)
        except RuntimeError as error:
            if _USED_TWICE not in str(error):
                raise
            why = "a parameter gets two gradients in one backward pass, as under reentrant activation checkpointing."
            fix = (
                "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or wrap the model in build: "
                "DistributedDataParallel(model, static_graph=True)."
            )
            raise RecipeError(recipe=recipe, why=why, fix=fix) from error

    return made


def bare(model: nn.Module) -> nn.Module:
    """Return the recipe's own module. The parameter names of this module do not depend on the distribution."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the same list as `model.parameters()`, but much faster. The list repeats shared parameters."""
    if type(model).parameters is not nn.Module.parameters or type(model).named_parameters is not _NAMED_PARAMETERS:
        return list(model.parameters())
    found: list[nn.Parameter] = []
    seen: set[nn.Module] = set()
    pending: list[nn.Module | None] = [model]
    while pending:
        module = pending.pop()
        if module is None or module in seen:
            continue
        if type(module).named_modules is not _NAMED_MODULES or type(module._parameters) is not dict:
            return list(model.parameters())  # This model walks its parameters in its own way.
        seen.add(module)
        for parameter in module._parameters.values():
            if parameter is not None:
                found.append(parameter)  # noqa: PERF401 - a comprehension is one more call for each module
        pending += reversed(module._modules.values())
    return found


def norm_and_clip(parameters: list[torch.Tensor], *, limit: float | None) -> torch.Tensor:
    """Return the norm of all gradients of these parameters, then scale the gradients down to `limit`.

    The results equal those of `torch.nn.utils.clip_grad_norm_` bit for bit. If some parameters are sharded, every rank
    must call this function.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not _are_plain_and_alike(gradients):
        norm = total_norm(gradients)
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm
    norm = _norm_of_norms(gradients)
    # A factor of 1 changes no bit. The norm of an accelerator is not read here, because the read would wait for the
    # accelerator.
    if limit is not None and not (norm.device.type == "cpu" and float(norm) < _SURELY_WITHIN * limit):
        with torch.no_grad():
            torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


def total_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm over all tensors. If some tensors are sharded, every rank must call this function."""
    tensors = stored_values(tensors)
    if _are_plain_and_alike(tensors):
        return _norm_of_norms(tensors)
    sharded = [tensor for tensor in tensors if is_sharded(tensor)] if sharded_types() else []
    if not sharded:
        return torch.nn.utils.get_total_norm(tensors)
    plain = [tensor for tensor in tensors if not is_sharded(tensor)]
    norms = [whole(torch.nn.utils.get_total_norm(group)) for group in (plain, sharded) if group]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def stored_values(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Replace each sparse tensor by its stored values, because torch cannot compute the norm of sparse tensors.

    A sparse gradient may store the same row several times. The entries of one row are summed before they are squared.
    """
    if {torch.strided}.issuperset(map(_layout_of, tensors)):
        return tensors
    return [tensor if tensor.layout is torch.strided else tensor.detach().coalesce().values() for tensor in tensors]


def _are_plain_and_alike(tensors: list[torch.Tensor]) -> bool:
    kinds = {(type(tensor), tensor.dtype, tensor.device, tensor.layout) for tensor in tensors}
    return len(kinds) == 1 and type(tensors[0]) in _PLAIN and tensors[0].layout is torch.strided


def _norm_of_norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the same bits as `torch.nn.utils.get_total_norm` in half the time, for plain tensors of one type and
    device."""
    with torch.no_grad():
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
        return norm


@torch.no_grad()
def parameter_norm(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of the parameters. The sum uses at least fp32, because bf16 has only three digits and would hide a
    lost optimizer state."""
    if _are_plain_and_alike(parameters) and parameters[0].dtype not in _COARSE:
        return _norm_of_norms(parameters)
    coarse = [tensor for tensor in parameters if tensor.dtype in _COARSE and not is_sharded(tensor)]
    if not coarse:
        return total_norm(parameters)
    others = [tensor for tensor in parameters if tensor.dtype not in _COARSE or is_sharded(tensor)]
    norms = [*torch._foreach_norm(coarse, 2.0, dtype=torch.float32), *([total_norm(others)] if others else [])]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm


class _Replicated(DistributedDataParallel):
    """A model that segue replicates on all ranks."""

    def __init__(self, model: nn.Module, device: torch.device, own_time: OwnTime | None) -> None:
        # DDP must sum in the same order in every attempt, because otherwise no resume could be exact. By default DDP
        # rebuilds its buckets after the first step. With find_unused_parameters, DDP keeps its buckets, and accepts
        # recipes with unused parameters.
        devices = None if device.type == "cpu" else [device]
        super().__init__(model, device_ids=devices, find_unused_parameters=True)
        self.trained = _trained(model)
        """For each parameter, whether DDP sums its gradient."""
        self.own_time = own_time

    def _sync_buffers(self) -> None:
        """Exchange the buffers before the forward pass. The wait for the other ranks does not count as own time of this
        rank."""
        if self.own_time is not None:
            self.own_time.pause()
        super()._sync_buffers()  # type: ignore[no-untyped-call]
        if self.own_time is not None:
            self.own_time.resume()


def _trained(model: nn.Module) -> tuple[bool, ...]:
    return tuple(parameter.requires_grad for parameter in model.parameters())


def _refuse_other_meshes(model: nn.Module, ranks: Ranks, *, name: str) -> None:
    """Refuse all meshes except data-parallel meshes (FSDP2, HSDP), because each rank trains on its share of a batch."""
    from torch.distributed.fsdp import FSDPModule  # A slow import (0.5 s).

    by_fsdp = tuple(at for at, module in model.named_modules() if isinstance(module, FSDPModule))
    for parameter_name, parameter in model.named_parameters():
        if not is_sharded(parameter):
            continue
        kinds = ["shard" if placement.is_shard() else "replicate" for placement in parameter.placements]
        is_data_parallel = parameter_name.startswith(by_fsdp) and kinds in (["shard"], ["replicate", "shard"])
        if not is_data_parallel or parameter.device_mesh.size() != ranks.count:
            why = (
                f"parameter {parameter_name} is distributed as {parameter.placements} over {parameter.device_mesh}, "
                "which is not fully_shard over all ranks."
            )
            fix = "use fully_shard over all ranks (FSDP2, or HSDP), not tensor or pipeline parallelism."
            raise RecipeError(recipe=name, why=why, fix=fix)
