"""Components for values without a state_dict: collections, arrays, tables, objects, variables, random generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.continuity.live_tree import put, tree_of
from segue.trainer.workloads.components import Component
from segue.user_objects import has
from segue.user_objects.variables import is_registrable


class LiveValue:
    """A value that is restored in place. All objects that share the value or its parts see the restored value."""

    def __init__(self, value: Any, *, path: str) -> None:
        self._value, self._path = value, path

    def capture(self) -> Any:
        return tree_of(self._value, path=self._path)

    def restore(self, tree: Any) -> None:
        put(self._value, tree)

    def devices(self) -> dict[str, str]:
        """Device type of each tensor in the value that is not on the CPU, by path."""
        return {path: tensor.device.type for path, tensor in self._encoded()[1].items() if tensor.device.type != "cpu"}

    def move(self, devices: Mapping[str, str]) -> None:
        """Move tensors to these devices. A restored tensor that replaces no live tensor is on the CPU."""
        skeleton, tensors = self._encoded()
        moved = {path: tensor.to(devices.get(path, tensor.device)) for path, tensor in tensors.items()}
        put(self._value, decode_tree(skeleton, moved))

    def _encoded(self) -> tuple[Any, dict[str, torch.Tensor]]:
        tensors: dict[str, torch.Tensor] = {}
        return encode_tree(self.capture(), path=self._path, tensors=tensors), tensors


class RestoredValues:
    """A component that records the devices of the tensors in registered values, and the names of those values that are
    settings."""

    def __init__(self, components: Mapping[str, Component], *, paths: Sequence[str] = ()) -> None:
        """`paths` are the paths of those registered values that are settings."""
        self._values = {name: each for name, each in components.items() if isinstance(each, LiveValue)}
        self._paths = list(paths)

    def capture(self) -> Any:
        devices = {name: found for name, value in self._values.items() if (found := value.devices())}
        return {"paths": self._paths} | ({"devices": devices} if devices else {})

    def restore(self, tree: Any) -> None:
        for name, devices in tree.get("devices", {}).items():
            if name in self._values:
                self._values[name].move(devices)


def component_of_value(target: Any, *, path: str) -> Component | None:
    """Return the component for a value that is restored in place. Return None if the value has no state, or has a
    `state_dict`.

    Raises:
        UnsupportedStateError: a part of the value cannot be saved; `path` is the name of the value in messages.
    """
    if has(target, "state_dict", "load_state_dict") or not is_registrable(target):
        return None
    component = LiveValue(target, path=path)
    encode_tree(component.capture(), path=path, tensors={})  # Raises now if something cannot be saved.
    return component
