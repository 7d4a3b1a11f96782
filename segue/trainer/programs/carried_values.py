"""The kinds of values that a loop carries. The module determines whether a value can be compared, and whether a
checkpoint can hold the value."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice
from types import FrameType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from torch import nn

from segue.checkpoints.format.collections import is_frame
from segue.checkpoints.format.constants import CONSTANTS
from segue.continuity.carried.carried_sentences import ITERATOR, KEEPER, OF_CODE
from segue.continuity.carried.loop_names import CarriedName
from segue.continuity.carried.source import calls_method
from segue.continuity.code_hash import is_users
from segue.continuity.iterators import is_iterator, position_of
from segue.continuity.object_walk import PLAIN, attributes_of
from segue.continuity.untracked.marks import ARRAYS, keeps_state
from segue.errors import UnsupportedStateError
from segue.sessions import Session
from segue.trainer.workloads.values import component_of_value
from segue.user_objects import is_users_file
from segue.user_objects.variables import CODE

COLLECTIONS = (dict, list, tuple, set, frozenset, deque)
VALUES: tuple[type, ...] = (*PLAIN, *CONSTANTS, complex, np.generic)
"""Types whose values cannot be changed in place."""
NAMESPACES = (Namespace, SimpleNamespace)
_MOST_ITEMS, _DEEPEST, _MOST_NAMESPACES = 64, 3, 32
ABSENT = object()


_OF_FRAMEWORKS = frozenset(
    {"torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchmetrics", "accelerate", "transformers"}
    | {"datasets", "tokenizers", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "ignite", "timm"}
    | {"wandb", "mlflow", "tensorboard", "tensorboardX", "tqdm", "rich", "matplotlib", "omegaconf", "hydra", "numpy"}
    | {"pandas", "segue", "attr", "yaml", "absl", "comet_ml", "neptune", "clearml", "aim", "sentencepiece", "tiktoken"}
)
"""Packages whose objects are ignored. Objects of these packages are tracked in another way, display numbers, hold
settings, or only count."""


def is_of_a_package(value: Any) -> bool:
    """Whether the value is an object of an installed package, and may hold learnt state."""
    kind = type(value)
    top = str(kind.__module__).partition(".")[0]
    if isinstance(value, (type, ModuleType)) or callable(value) or top in _OF_FRAMEWORKS:
        return False
    return top not in sys.stdlib_module_names and not is_users(kind, home="__main__")


def kind_of(value: Any) -> str:
    if is_iterator(value) and position_of(value) is None and not keeps_state(value):
        return ITERATOR
    if not isinstance(value, CODE) and not is_iterator(value) and not _can_be_carried(value):
        return KEEPER
    return OF_CODE if isinstance(value, CODE) else type(value).__name__


def _can_be_carried(value: Any) -> bool:
    """Whether `run.carry` accepts the value."""
    try:
        component_of_value({"value": value}, path="value")
    except UnsupportedStateError:
        return False
    return True


def is_data(value: Any) -> bool:
    """Whether the value can be compared by its content, because it contains no object of a user's class."""
    if isinstance(value, (*VALUES, *ARRAYS)) or is_frame(value) or keeps_state(value):
        return True
    if isinstance(value, COLLECTIONS):
        return _hold_data(value.values() if isinstance(value, dict) else value)
    return is_iterator(value) and not _is_segues(value)


def may_be_data(value: Any) -> bool:
    """Whether the value is plain, an array, a tensor or a collection. The function calls no code of the user's
    classes."""
    return issubclass(type(value), (*VALUES, *ARRAYS, *COLLECTIONS))


def namespaces_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return each variable of a running function whose value is a namespace, with its name. The result includes
    namespaces inside namespaces."""
    local, code = frame.f_locals, frame.f_code
    names = dict.fromkeys((*local, *code.co_names))
    waiting = [(name, local.get(name, frame.f_globals.get(name, ABSENT))) for name in names]
    found: dict[int, tuple[str, Any]] = {}
    for name, value in waiting:
        if type(value) in NAMESPACES and id(value) not in found and name.count(".") < _DEEPEST:
            found[id(value)] = (name, value)
            waiting += [(f"{name}.{attribute}", held) for attribute, held in dict(vars(value)).items()]
    return list(found.values())[:_MOST_NAMESPACES]


def value_of(name: str, local: Mapping[str, Any], outside: Mapping[str, Any]) -> Any:
    """Return the value of a variable, or of an attribute of an object that no other check covers."""
    holder, _, attribute = name.partition(".")
    value = local.get(holder, outside.get(holder, ABSENT))
    if not attribute:
        return value
    if value is ABSENT or issubclass(type(value), (Session, nn.Module, type)) or is_users(type(value), home="__main__"):
        return ABSENT
    if type(value).__module__.startswith("torch."):
        return ABSENT  # An optimizer, a scheduler or a loader, which is tracked as a whole or not at all.
    held = getattr(value, "__dict__", None)
    return held.get(attribute, ABSENT) if isinstance(held, dict) else ABSENT


def as_data(value: Any, name: CarriedName) -> Any:
    """Return comparable data for an enumeration, or for a record or code that the loop assigns again."""
    if isinstance(value, Enum):
        return value.name
    if not name.is_rebound:
        return value
    if isinstance(value, CODE):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    if is_users(type(value), home="__main__"):
        return dict(attributes_of(value)) or value
    return value


class Unlooked:
    """Placeholder for an object of the user's code that raises an exception when it is inspected."""

    def __init__(self, value: Any) -> None:
        self.name = type(value).__name__


def looked_at(value: Any) -> Any:
    """Return the value, or an `Unlooked` if inspecting its content raises an exception."""
    try:
        if isinstance(value, COLLECTIONS):
            _ = (bool(value), list(value.values() if isinstance(value, dict) else value))
    except Exception:  # A user's class may raise any exception.
        return Unlooked(value)
    return value


def type_name(value: Any) -> str:
    """Name of the value's class, for messages."""
    return value.name if isinstance(value, Unlooked) else type(value).__name__


def is_sought(value: Any, name: CarriedName) -> bool:
    """Whether the value is an open file whose position the program itself sets with `seek`."""
    return isinstance(value, io.IOBase) and calls_method(name.file, name.name, "seek")


def may_keep(value: Any, name: CarriedName) -> bool:
    """Whether the value may hold state for the next iteration, even if the value cannot be compared."""
    if isinstance(value, VALUES) or is_sought(value, name):
        return False
    return isinstance(value, Unlooked) or is_data(value) or (name.is_rebound and is_of_a_package(value))


def _hold_data(items: Iterable[Any], depth: int = 0) -> bool:
    return all(
        isinstance(item, (*VALUES, *ARRAYS))
        or (
            isinstance(item, COLLECTIONS)
            and depth < _DEEPEST
            and _hold_data(item.values() if isinstance(item, dict) else item, depth + 1)
        )
        for item in islice(list(items), _MOST_ITEMS)
    )


def _is_segues(iterator: Any) -> bool:
    return isinstance(iterator, GeneratorType) and not is_users_file(iterator.gi_code.co_filename)
