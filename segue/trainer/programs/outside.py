"""A program's state outside what it tracks: the objects that its loop and its module hold."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from segue.continuity.code_hash import is_users
from segue.continuity.live_tree import parts_held
from segue.continuity.object_walk import STREAMS
from segue.continuity.untracked.reach import Reach
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.outside import OutsideState, parts_of_loader
from segue.user_objects import attribute, has, is_users_file

_HOME = "__main__"
_HOLDERS = (nn.Module, torch.optim.Optimizer, *STREAMS, dict, list, set, deque, FunctionType, MethodType, partial)


def of_program(tracked: Mapping[str, Any], *, loaders: Mapping[str, Any]) -> OutsideState:
    """What the program's loop can reach and does not track; to be called when its first step is due.

    `loaders` are those that it has handed over so far, by the names of their components.
    """
    return OutsideState(lambda: _reached(tracked, loaders), is_program=True)


def _reached(tracked: Mapping[str, Any], loaders: Mapping[str, Any]) -> Reach:
    found = Reach(_HOME, scopes=tuple(frame.f_code for frame in _frames_of_the_user()))
    for name, target in tracked.items():
        found.own(name, _owned_by(target))
    held = _held_by_the_loop()
    for name, target in {**tracked, **held}.items():
        expression = name if held.get(name) is target else _variable_of(target)
        found.add(name, lambda target=target: target, expression=expression)  # type: ignore[misc]
    for name, loader in loaders.items():
        variable = _variable_of(loader)
        for part, target in _parts_of(loader).items():
            path = f"{name}.{part}"
            root = path if part in _CALLED and not has(target, "state_dict", "load_state_dict") else name
            expression = f"{variable}.{part}" if variable else ""
            found.add(root, lambda target=target: target, path=path, expression=expression)  # type: ignore[misc]
    return found


def _variable_of(target: Any) -> str:
    """How the code around the loop writes it: a variable, or an attribute of one; empty if there is none."""
    for frame in _frames_of_the_user():
        held = {**frame.f_globals, **frame.f_locals}
        if found := next((name for name, value in held.items() if value is target), ""):
            return found
        for name, value in held.items():
            attributes = {} if isinstance(value, ModuleType) else attribute(value, "__dict__", {})
            pairs = attributes.items() if isinstance(attributes, dict) else ()
            if found := next((each for each, inner in pairs if inner is target), ""):
                return f"{name}.{found}"
    return ""


def _owned_by(target: Any) -> Iterable[Any]:
    if isinstance(target, nn.Module):
        return bare(target).modules()
    return [target] if has(target, "state_dict", "load_state_dict") else parts_held(target)


_CALLED = ("dataset", "collate_fn", "worker_init_fn")
"""What no component has a state of. What a loader and its samplers count, and what is stateful, the loader's has."""


def _parts_of(loader: Any) -> dict[str, Any]:
    is_plain = isinstance(loader, DataLoader) and not has(loader, "state_dict", "load_state_dict")
    return parts_of_loader(loader) if is_plain else {"loader": loader}


def _held_by_the_loop() -> dict[str, Any]:
    """The objects among the variables of the function with the loop, and of its module.

    No plain values and no tensors: those of a loop are others in each step, and say nothing.
    """
    held: dict[str, Any] = {}
    for frame in _frames_of_the_user():
        held = {**frame.f_globals, **frame.f_locals, **held}
    return {name: value for name, value in held.items() if not name.startswith("__") and _is_holder(value)}


def _frames_of_the_user() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_holder(value: Any) -> bool:
    """Whether it can hold state: not an object of an installed package, such as a progress bar."""
    kind = type(value)
    is_stateful = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return isinstance(value, _HOLDERS) or is_stateful or is_users(kind, home=_HOME)
