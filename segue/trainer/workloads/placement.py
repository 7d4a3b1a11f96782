"""The placement of a step's objects on the attempt's device. Objects that the user has placed or distributed are not
moved."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue.checkpoints.format.dtensor import is_sharded
from segue.recipe import Recipe
from segue.user_objects import attribute, has

_COUNTER = "step"
"""The only optimizer state that torch keeps in host memory. A fused or capturable optimizer keeps no state in host
memory."""


def place(recipe: Recipe, device: torch.device) -> None:
    """Move the model, the loss, the objects in `extra`, and initial optimizer state to the device.

    Modules that are already on an accelerator, sharded, or spread over devices are not moved.
    """
    if device.type == "cpu":
        return
    for module in (recipe.model, recipe.loss, recipe.step, *recipe.extra.values()):
        if isinstance(module, nn.Module) and not is_placed(module):
            module.to(device)
    others = (value for value in recipe.extra.values() if isinstance(value, torch.optim.Optimizer))
    for optimizer in (*recipe.optimizers.values(), *others):
        _place_state(optimizer)


def is_placed(module: nn.Module) -> bool:
    """Whether the user has placed the module on an accelerator or on several devices, or has sharded the module."""
    tensors = [*module.parameters(), *module.buffers()]
    return attribute(module, "hf_device_map") is not None or any(
        is_sharded(tensor) or tensor.device.type not in ("cpu", "meta") for tensor in tensors
    )


def to_device(content: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on `device`. Collections keep their type.

    If an object has a method `to`, for example a batch of a graph library, that method moves the object.
    """
    if device.type == "cpu":
        return content
    if isinstance(content, torch.Tensor):
        return content.to(device, non_blocking=True)
    if isinstance(content, Mapping) and not has(content, "to"):
        return _like(content, {key: to_device(value, device) for key, value in content.items()})
    if isinstance(content, tuple) and attribute(content, "_fields") is not None:
        return type(content)(*(to_device(item, device) for item in content))
    if isinstance(content, (list, tuple)):
        return type(content)(to_device(item, device) for item in content)
    if has(content, "to"):
        return content.to(device)
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        given = [each.name for each in dataclasses.fields(content) if each.init]
        return dataclasses.replace(content, **{name: to_device(getattr(content, name), device) for name in given})
    return content


def _like(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if isinstance(mapping, defaultdict):
        return defaultdict(mapping.default_factory, values)
    return type(mapping)(values)  # type: ignore[call-arg]


def _place_state(optimizer: torch.optim.Optimizer) -> None:
    for group, parameter in _held(optimizer):
        slots = optimizer.state.get(parameter, {})
        for name, value in slots.items():
            stays = name == _COUNTER and not (group.get("capturable") or group.get("fused"))
            if isinstance(value, torch.Tensor) and not stays and not is_sharded(value):
                slots[name] = value.to(parameter.device)


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield group, parameter
