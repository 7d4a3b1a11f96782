"""Finds the attributes of a namespace that a loop carries from one iteration to the next.

An `argparse.Namespace` or a `SimpleNamespace` may have another variable name in each function that gets the namespace.
In the data-flow graph, all attributes of a namespace depend on each other. This module analyses each attribute
separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property

from segue.continuity.carried.flows import AttributeChange, Flows, Spot, spot_of
from segue.continuity.carried.live_names import Loop, live_at_entry, live_in, loops_at
from segue.continuity.carried.loop_names import CarriedName, Running
from segue.continuity.carried.source import Function, function_at, functions_of


class NamespaceFlows:
    """Finds the carried attributes of namespaces. The class builds the graph of each namespace once."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self._of: dict[frozenset[Spot], _Namespace] = {}

    def carried(self, running: Running, variable: str, attributes: Collection[str]) -> Iterator[CarriedName]:
        """Return the attributes of a variable whose values may last from one iteration to the next.

        If the analysis finds no statement that changes an attribute, it assumes that the value lasts.
        """
        place = self._place(running, variable)
        if place is None:
            return
        found, function, loops = place
        for attribute in attributes:
            if found.lasts(attribute, function, loops):
                change = next(iter(found.changes.get(attribute, ())), None)
                yield CarriedName(
                    name=f"{variable}.{attribute}",
                    function=function.name,
                    file=(change.function if change is not None else function).file,
                    line=change.line if change is not None else loops[0].lineno,
                    loop_line=loops[0].lineno,
                    is_rebound=False,
                    is_used=found.flows.is_used(f".{attribute}"),
                    is_of_process=found.flows.follows_from_process(f".{attribute}"),
                    is_bound=True,
                    is_global=False,
                    is_of_namespace=True,
                    is_change_known=change is not None,
                )

    def makes_anew(self, running: Running, variable: str, attribute: str) -> bool:
        """Whether each iteration assigns this attribute before it reads the attribute."""
        place = self._place(running, variable)
        if place is None:
            return False
        found, function, loops = place
        return found.is_made_anew(attribute, function, loops)

    def _place(self, running: Running, variable: str) -> tuple[_Namespace, Function, list[Loop]] | None:
        """Return the namespace in a variable, the function, and the running loops.

        Return None if no loop is running.
        """
        function = function_at(running.file, running.name, running.first_line)
        loops = loops_at(function, running.line) if function is not None else []
        holder, _, attribute = variable.rpartition(".")
        spot = f".{attribute}" if holder else spot_of(function, variable) if function is not None else None
        return (self._namespace(spot), function, loops) if function is not None and loops and spot is not None else None

    def _namespace(self, spot: Spot) -> _Namespace:
        names = self._flows.names_of_same(spot)
        if names not in self._of:
            self._of[names] = _Namespace(self._flows, names)
        return self._of[names]


class _Namespace:
    """The uses of one namespace in all functions, under all names of the namespace."""

    def __init__(self, flows: Flows, names: frozenset[Spot]) -> None:
        self._all, self._names = flows, names
        self.changes: defaultdict[str, list[AttributeChange]] = defaultdict(list)
        """The statements that change each attribute."""
        for change in flows.changes:
            if change.holder in names:
                self.changes[change.attribute].append(change)

    @cached_property
    def flows(self) -> Flows:
        """The data-flow graph without the edges through the namespace as a whole."""
        return self._all.of_data_without(self._names)

    def lasts(self, attribute: str, function: Function, loops: list[Loop]) -> bool:
        """Whether the attribute may have a value of an earlier iteration, in one function or across functions."""
        changes = self.changes.get(attribute, ())
        if not changes:
            return self.flows.is_used(f".{attribute}")
        if any(_may_keep(each) and self._is_from_training(each) for each in changes):
            return True
        return self._is_read_later(attribute, function, loops) and self.flows.depends_on_itself(f".{attribute}")

    def is_made_anew(self, attribute: str, function: Function, loops: list[Loop]) -> bool:
        """Whether each function assigns the attribute before it reads the attribute.

        If the result is True, no function reads a value of another function.
        """
        changes = self.changes.get(attribute, ())
        is_assigned = any(each.is_assignment for each in changes) and not any(map(_may_keep, changes))
        return is_assigned and not self._is_read_later(attribute, function, loops)

    def _is_from_training(self, change: AttributeChange) -> bool:
        """Whether the change does more than create a constant at the first use of the attribute."""
        return not change.is_first or self.flows.is_written(f".{change.attribute}")

    def _is_read_later(self, attribute: str, function: Function, loops: list[Loop]) -> bool:
        """Whether a function reads the attribute without assigning it.

        If the namespace is itself an attribute, the result is True.
        """
        if any(name.startswith(".") for name in self._names):
            return True
        for each, variables in self._functions.items():
            read = live_at_entry(each) if not each.is_module else frozenset()
            if each is function:
                read = read.union(*(live_in(each, loop) for loop in loops))
            if any(f"{variable}.{attribute}" in read for variable in variables):
                return True
        return False

    @cached_property
    def _functions(self) -> dict[Function, list[str]]:
        """Return the functions with a variable for the namespace, and the names of these variables."""
        of_places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for spot in sorted(self._names):
            if "|" in spot:
                file, name, variable = spot.rsplit("|", 2)
                of_places[file, name].append(variable)
        found = {each: names for (file, name), names in of_places.items() for each in _named(file, name)}
        inner = {
            each: names
            for outer, names in found.items()
            for each in functions_of(outer.file)
            if each not in found and each.parent is outer
        }
        return found | inner


def _named(file: str, name: str) -> Iterator[Function]:
    return (each for each in functions_of(file) if each.name == name)


def _may_keep(change: AttributeChange) -> bool:
    """Whether the function may read the earlier value before the assignment, or may keep the earlier value."""
    if not change.is_assignment or change.function.is_module or not change.name:
        return False
    return change.name in live_at_entry(change.function, at_end=change.name)
