"""Buffers that the model's own code registers, resizes or removes during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def fit(model: nn.Module, state: Mapping[str, Any], *, late: Iterable[str] = (), gone: Iterable[str] = ()) -> None:
    """Change the model's buffers so that `load_state_dict(state)` can fill them.

    `late` names the saved buffers that the model itself registers later. `gone` names the buffers of the model that are
    not in the saved state. Parameters are not changed.
    """
    for path in gone:
        module, name = _at(model, path)
        if module is not None and name in module._buffers:
            module._buffers[name] = None
    unset = [path for path, value in state.items() if isinstance(value, torch.Tensor) and _is_unset(model, path)]
    for path in (*late, *unset):
        if isinstance(state.get(path), torch.Tensor):
            register(model, path, torch.empty_like(state[path]), persistent=True)
    for path, live in [*model.named_buffers(remove_duplicate=False)]:
        saved = state.get(path)
        if isinstance(saved, torch.Tensor) and type(live) is torch.Tensor and _is_other(saved, live):
            module, name = _at(model, path)
            if module is not None:
                module._buffers[name] = torch.empty_like(saved, device=live.device)


def register(model: nn.Module, path: str, value: torch.Tensor, *, persistent: bool) -> bool:
    """Register a buffer under this path, on the device of its module. Return False if the module does not exist yet."""
    module, name = _at(model, path)
    if module is None or name in module._parameters or name in module._modules:
        return False
    value = value.to(_device_of(module, model, value))
    if name in module._buffers:
        module._buffers[name] = value
        return True
    vars(module).pop(name, None)  # For example, from `self.mask = None` before that buffer exists.
    module.register_buffer(name, value, persistent=persistent)
    return True


def _is_unset(model: nn.Module, path: str) -> bool:
    """Whether this buffer of the model exists, but is None."""
    at: Any = model
    *where, name = path.split(".")
    for step in where:
        children = vars(at).get("_modules")
        at = children.get(step) if isinstance(children, dict) else None  # A module of TorchScript has all its buffers.
        if at is None:
            return False
    table = vars(at).get("_buffers", {})
    return name in table and table[name] is None


def _at(model: nn.Module, path: str) -> tuple[nn.Module | None, str]:
    where, _, name = path.rpartition(".")
    return dict(model.named_modules(remove_duplicate=False)).get(where), name


def _device_of(module: nn.Module, model: nn.Module, value: torch.Tensor) -> torch.device:
    tensors = (*module.parameters(), *module.buffers(), *model.parameters())
    return tensors[0].device if tensors else value.device


def _is_other(saved: torch.Tensor, live: torch.Tensor) -> bool:
    return saved.shape != live.shape or saved.dtype != live.dtype
