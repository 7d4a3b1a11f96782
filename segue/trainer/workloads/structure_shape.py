"""A record of modules, tensors and groups by name. A check takes microseconds to detect a change of the recorded
objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from segue.checkpoints.format.dtensor import is_sharded

_dtype_of, _shape_of, _children_of = attrgetter("dtype"), attrgetter("shape"), itemgetter("_modules")

Groups = list[list[Any]]
"""The parameters in each group of one optimizer."""


class Shape(NamedTuple):
    """Modules, tensors and groups at the time of the record."""

    modules: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]
    """The parameters, by name. If a parameter has several names, it is listed under each name."""
    buffers: frozenset[str]
    """Names of the buffers in the state_dict."""
    specs: dict[str, str]
    """Type and shape of each parameter, except parameters that get their shape in the first forward pass."""
    groups: dict[str, Groups]
    """Parameter groups by name of the optimizer."""

    @classmethod
    def of(cls, roots: Mapping[str, nn.Module], optimizers: Mapping[str, Any]) -> Shape:
        modules: dict[str, nn.Module] = {}
        parameters: dict[str, nn.Parameter] = {}
        buffers: set[str] = set()
        for root, top in roots.items():
            start = f"{root}." if root else ""
            modules |= {start + name: module for name, module in top.named_modules() if name}
            parameters |= {start + name: each for name, each in top.named_parameters(remove_duplicate=False)}
            for at, module in top.named_modules():
                buffers |= {start + (f"{at}.{name}" if at else name) for name in kept_buffers(module)}
        specs = {name: _spec(each) for name, each in parameters.items() if not is_lazy(each)}
        groups = {name: [[*group["params"]] for group in each.param_groups] for name, each in optimizers.items()}
        return cls({**roots, **modules}, parameters, frozenset(buffers), specs, groups)

    @property
    def is_spread(self) -> bool:
        """Whether tensors are sharded over ranks."""
        return any(map(is_sharded, self.parameters.values()))

    @property
    def names(self) -> dict[int, str]:
        """The first name of each parameter, by the parameter's id."""
        return {id(parameter): name for name, parameter in reversed(self.parameters.items())}


class Watched(NamedTuple):
    """The tables inside torch modules. A comparison of these tables shows a change within microseconds. This record
    keeps all objects alive, so that their ids stay unique."""

    attributes: list[dict[str, Any]]
    parameters: list[dict[str, Any]]
    buffers: list[dict[str, Any]]
    """Buffers of modules whose restore does not accept new buffers."""
    optimizers: list[Any]
    held: list[Any]
    has_lazy: bool
    is_spread: bool
    seen: list[Any]

    @classmethod
    def of(cls, shape: Shape, optimizers: Mapping[str, Any], *, plain: tuple[str, ...]) -> Watched:
        # A ScriptModule has no tables, and its structure cannot change.
        named = {name: vars(each) for name, each in shape.modules.items() if _has_tables(vars(each))}
        attributes = [*named.values()]
        parameters = [each["_parameters"] for each in attributes]
        buffers = [each["_buffers"] for name, each in named.items() if f"{name}.".startswith(plain)]
        has_lazy = len(shape.specs) < len(shape.parameters)
        held = [*shape.modules.values(), *shape.parameters.values(), *shape.groups.values()]
        watched = cls(attributes, parameters, buffers, [*optimizers.values()], held, has_lazy, shape.is_spread, [])
        return watched._replace(seen=watched.glance())

    def is_unchanged(self) -> bool:
        return self.seen == self.glance()

    def glance(self) -> list[Any]:
        # The table is read again, because torch gives a Sequential another table when a layer is deleted.
        children = [*map(_children_of, self.attributes)]
        names = [[*chain.from_iterable(tables)] for tables in (self.parameters, children, self.buffers)]
        modules = [*map(id, chain.from_iterable(map(dict.values, children)))]
        if self.is_spread:
            return [names, modules]
        tensors = [each for table in self.parameters for each in table.values() if each is not None]
        shaped = [each for each in tensors if not is_lazy(each)] if self.has_lazy else tensors
        groups = [[*map(id, group["params"])] for each in self.optimizers for group in each.param_groups]
        return [names, modules, [*map(id, tensors)], [*map(_shape_of, shaped)], [*map(_dtype_of, shaped)], groups]


_TABLES = {"_parameters", "_modules", "_buffers"}


def _has_tables(attributes: Mapping[str, Any]) -> bool:
    return all(isinstance(attributes.get(name), dict) for name in _TABLES)


def kept_buffers(module: nn.Module) -> set[str]:
    table, left_out = vars(module).get("_buffers"), vars(module).get("_non_persistent_buffers_set", ())
    if not isinstance(table, dict):
        return set()
    return {name for name, buffer in table.items() if buffer is not None and name not in left_out}


def _spec(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
