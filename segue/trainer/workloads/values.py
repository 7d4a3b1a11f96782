"""Components of values that have no state_dict: collections, arrays, tables, objects, variables, random generators."""

from __future__ import annotations

from typing import Any

from segue.checkpoints.format.state_tree import encode_tree
from segue.continuity.live_tree import put, tree_of
from segue.trainer.workloads.components import Component
from segue.user_objects import has
from segue.user_objects.variables import is_registrable


class LiveValue:
    """A value that is restored in place, so that all who share it, or a part of it, see what was restored."""

    def __init__(self, value: Any, *, path: str) -> None:
        self._value, self._path = value, path

    def capture(self) -> Any:
        return tree_of(self._value, path=self._path)

    def restore(self, tree: Any) -> None:
        put(self._value, tree)


def component_of_value(target: Any, *, path: str) -> Component | None:
    """The component of a value that is restored in place; None for what has a state_dict, or no state at all.

    Raises:
        UnsupportedStateError: something in it cannot be saved; `path` is what it is called in messages.
    """
    if has(target, "state_dict", "load_state_dict") or not is_registrable(target):
        return None
    component = LiveValue(target, path=path)
    encode_tree(component.capture(), path=path, tensors={})  # What cannot be saved is said now.
    return component
