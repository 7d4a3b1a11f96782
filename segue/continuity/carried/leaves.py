"""Decides whether the values in the user's objects affect later steps."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from segue.continuity.carried.flows import Flows, Spot
from segue.continuity.carried.reading import flows_of
from segue.continuity.carried.source import MODULE
from segue.continuity.iterators import is_iterator
from segue.continuity.untracked.place import MODULE_VARIABLE, Leaf, ValuePlace
from segue.data.streams import STREAMS

_OF_CODE = ("closure variable", MODULE_VARIABLE, "default argument", "function attribute", "class attribute")
"""The types of variables whose names appear in the analysed code."""


class UseOfLeaves:
    """Finds the nodes of values in the data-flow graph.

    The search uses the last name in the value's path that the code contains.
    """

    def __init__(
        self,
        flows: Flows,
        *,
        modules: Collection[str] = ("model",),
        is_made_anew: Callable[[str], bool] = lambda _: False,
        is_of_framework: bool = False,
    ) -> None:
        """`modules` contains the names of torch modules, whose plain attributes are in no state_dict.

        `is_made_anew` is true for an attribute that the loop assigns in each step before the loop reads it. If
        `is_of_framework` is true, a framework runs the loop and saves the loop's state, so no value is carried.
        """
        self._flows, self._modules, self._is_made_anew = flows, modules, is_made_anew
        self._is_of_framework = is_of_framework

    def is_carried(self, leaf: Leaf) -> bool:
        """Whether the next value of a variable follows from its current value, and affects more than output for people.

        A component with its own state_dict may store its values in another form in the state_dict.
        """
        if self._is_of_framework or (leaf.is_registered and leaf.root not in self._modules):
            return False
        if leaf.at is None or (leaf.root in self._modules and _is_within_package(leaf.at)):
            return False  # The value does not exist in this process, or a library such as FSDP keeps it in a module.
        return any(self._is_carried(leaf, spot) for spot in (*self._spots_of(leaf), *self._spots_of_list(leaf)))

    def is_shown(self, leaf: Leaf) -> bool:
        """Whether the value has no effect on training.

        A value without effect is only shown to people, is unused, or is replaced in each step.
        """
        spots = self._spots_of(leaf)
        if self._is_made_anew(leaf.path.rpartition(".")[2]) and not self.is_carried(leaf):
            return True
        return bool(spots) and not any(map(self._flows.is_used, spots))

    def _is_carried(self, leaf: Leaf, spot: Spot) -> bool:
        if not self._flows.is_used(spot) or self._flows.follows_from_process(spot):
            return False
        value = _value_of(leaf)
        if isinstance(value, STREAMS):
            return not self._flows.is_written(spot)  # If it is written, the generator is seeded again for each use.
        return is_iterator(value) or self._flows.depends_on_itself(spot)

    def _spots_of_list(self, leaf: Leaf) -> list[Spot]:
        """Return the graph nodes of the collection that contains the value.

        A collection may grow while its objects stay unchanged.
        """
        names = leaf.path.split(".")
        found = (number for number, name in enumerate(names) if number and name.isdigit())
        at = next((number for number in found if not _is_module(leaf, ".".join(names[:number]))), 0)
        return list(self._flows.named(names[at - 1])) if at else []

    def _spots_of(self, leaf: Leaf) -> list[Spot]:
        names = [name for name in reversed(leaf.path.split(".")) if not name.isdigit()]
        for number, name in enumerate(names):
            found = self._flows.named(name)
            if number == 0 and leaf.place == MODULE_VARIABLE:
                of_module = [spot for spot in found if f"|{MODULE}|" in spot]
                found = of_module or [
                    spot for spot in found if "|" not in spot
                ]  # The variable belongs to another module, so it is an attribute of that module.
            elif number == 0 and leaf.place == "closure variable":
                found = [spot for spot in found if "|" in spot and f"|{MODULE}|" not in spot]
            elif number == 0 and ("attribute" in leaf.place or not leaf.place):
                # If a value has no place, only an earlier attempt had the value, most often as an attribute.
                found = [spot for spot in found if "|" not in spot] or ([] if leaf.place else found)
            if found or leaf.place in _OF_CODE:
                return found
        return []


def _is_module(leaf: Leaf, path: str) -> bool:
    """Whether the object at this path is a torch module.

    Below a torch module, the numbers in paths are layer numbers.
    """
    place = leaf.at
    while place is not None and place.path != path:
        place = place.outer
    try:
        return place is not None and isinstance(place.get(), nn.Module)
    except Exception:  # The object no longer exists, or the user's code raises when it is read.
        return False


def _is_within_package(place: ValuePlace) -> bool:
    """Whether the value is inside an object from an installed package. Layers are not included."""
    outer = place.outer
    while outer is not None:
        try:
            holder = outer.get()
        except Exception:  # The object no longer exists, or the user's code raises when it is read.
            return False
        file = getattr(sys.modules.get(type(holder).__module__), "__file__", None) or ""
        is_installed = file.startswith(_INSTALLED) and not isinstance(holder, (nn.Module, torch.Tensor))
        if is_installed:
            return True
        outer = outer.outer
    return False


_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def _value_of(leaf: Leaf) -> Any:
    try:
        return leaf.get()
    except Exception:  # The object no longer exists, or the user's code raises when it is read.
        return None


def use_by(functions: Iterable[FunctionType]) -> UseOfLeaves:
    """Return the `UseOfLeaves` for the code of these functions alone."""
    codes = [function.__code__ for function in functions]
    known = {(code.co_filename, code.co_qualname) for code in codes}
    return UseOfLeaves(flows_of(dict.fromkeys(file for file, _ in sorted(known)), only=known))
