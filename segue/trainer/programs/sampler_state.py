"""The random streams and counters of a loader's samplers, as components that can be captured and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from segue.data.streams import STREAMS
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.state import rng_components
from segue.trainer.workloads.values import LiveValue
from segue.user_objects import attribute

_MOST_DEPTH = 4
_PLAIN = (bool, int, float, str)


class _Counters:
    """Plain attributes of a sampler, for example its epoch."""

    def __init__(self, target: Any, without: frozenset[str]) -> None:
        self._target, self._without = target, without

    def capture(self) -> Any:
        return {
            name: value
            for name, value in vars(self._target).items()
            if type(value) in _PLAIN and name not in self._without
        }

    def restore(self, tree: Any) -> None:
        vars(self._target).update(tree)


def streams_and_counters(loader: DataLoader[Any]) -> dict[str, Component]:
    """Return the global random streams, and the generators and counters of the loader and its samplers, by path."""
    own = frozenset(vars(DataLoader(TensorDataset())))  # Attributes that any loader has are no state.
    found: dict[str, Component] = dict(rng_components(Ranks(), nn.Module()))
    found["loader"] = _Counters(loader, own)
    found |= _generators("loader", loader)
    for path, sampler in _samplers("loader", loader, _MOST_DEPTH):
        found[path] = _Counters(sampler, frozenset())
        found |= _generators(path, sampler)
    return found


def _samplers(path: str, holder: Any, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in attribute(holder, "__dict__", {}).items():
        is_sampler = isinstance(value, Sampler) or name.strip("_").endswith("sampler")
        if depth and is_sampler and attribute(value, "__dict__") is not None:
            yield f"{path}.{name}", value
            yield from _samplers(f"{path}.{name}", value, depth - 1)


def _generators(path: str, holder: Any) -> dict[str, Component]:
    held = ((f"{path}.{name}", value) for name, value in attribute(holder, "__dict__", {}).items())
    return {name: LiveValue(value, path=name) for name, value in held if isinstance(value, STREAMS)}
