"""Builds the data-flow graph of the user's functions, to decide which values affect more than output for people.

A node of the graph is a variable, an attribute (by its name) or the result of a function. The graph ignores the order
of statements. An edge leads from a node that a statement reads to a node that the statement changes. If the analysis
does not understand some code, it assumes that the values in the code affect training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from segue.continuity.carried.source import Function, functions_of

Spot = str
"""A node of the graph: `file|function|name` for a variable, `.name` for an attribute."""
USED: Spot = "used"
"""The end node of the graph. Each value that affects training, saved results or a library has a path to this node."""
PROCESS: Spot = "process"
"""The node that represents times, process ids and temporary file names."""
COLLECTION: Spot = "collection"
"""The node that represents Python's built-in collections."""
UNKNOWN: Spot = "unknown"
"""The node that represents objects of libraries. A change of an object of a library may change training."""


def spot_of(function: Function, name: str) -> Spot | None:
    """Return the node of the variable with this name in a function. Return None for a built-in name."""
    home = function.home_of(name)
    return None if home is None else f"{home.file}|{home.name}|{name}"


@dataclass(frozen=True)
class Mutation:
    """A change of an object."""

    root: Spot
    """The node of the name through which the code changes the object."""
    sources: frozenset[Spot]
    """The nodes whose values determine the change."""
    conditions: frozenset[Spot]
    is_guess: bool
    """Whether the analysis only assumes the change, because the code calls an unknown method of the object."""


@dataclass(frozen=True)
class AttributeChange:
    """A statement that assigns an attribute of a variable's object, or that changes the attribute in place."""

    holder: Spot
    attribute: str
    name: str
    """The attribute as `variable.attribute`. The text is empty if the object is itself an attribute."""
    function: Function
    line: int
    is_assignment: bool
    is_first: bool
    """Whether the statement runs only if the attribute is None or lacks a value."""


class Flows:
    """The data-flow graph, which is built once from whole files."""

    def __init__(self) -> None:
        self._to: defaultdict[Spot, set[Spot]] = defaultdict(set)
        self._from: defaultdict[Spot, set[Spot]] = defaultdict(set)
        self.aliases: defaultdict[Spot, set[Spot]] = defaultdict(set)
        """For each node, the other nodes that may hold the same object."""
        self.mutations: list[Mutation] = []
        self._computed: defaultdict[Spot, set[Spot]] = defaultdict(set)
        """The edges of the graph, except the edges that come from conditions."""
        self.same: defaultdict[Spot, set[Spot]] = defaultdict(set)
        """For each name, the other names of the same object.

        An object gets another name by an assignment or as an argument.
        """
        self._both: defaultdict[Spot, set[Spot]] | None = None
        self.changes: list[AttributeChange] = []
        self._direct: list[tuple[frozenset[Spot], Spot, frozenset[Spot]]] = []
        """The edges other than changes of an object in place, each with its sources, its target and its conditions."""
        self._used: frozenset[Spot] | None = None
        self._of_process: set[Spot] | None = None
        self._named: defaultdict[str, list[Spot]] | None = None

    def add(self, sources: Iterable[Spot], target: Spot, *, conditions: Iterable[Spot] = ()) -> None:
        sources, conditions = frozenset(sources), frozenset(conditions)
        self._direct.append((sources, target, conditions))
        self._link(sources, target, conditions)

    def _link(self, sources: Iterable[Spot], target: Spot, conditions: Iterable[Spot]) -> None:
        for source in sources:
            self._computed[source].add(target)
        for source in (*sources, *conditions):
            self._to[source].add(target)
            self._from[target].add(source)

    def add_same(self, name: Spot | None, other: Spot | None) -> None:
        """Record that a name is bound to the object of another name."""
        if name is not None and other is not None:
            self.same[name].add(other)

    def settle(self) -> None:
        """Apply each change of an object to all other names of the object."""
        for each in self.mutations:
            for spot in self._all_names_of(each.root):
                self._link(each.sources, USED if spot == UNKNOWN else spot, each.conditions)

    def of_data_without(self, names: Collection[Spot]) -> Flows:
        """Return the graph without the given nodes, which hold plain data.

        Plain data has no methods that could change the data without an edge in the graph.
        """
        left = Flows()
        left.aliases = self.aliases
        for sources, target, conditions in self._direct:
            if target not in names:
                left.add(sources.difference(names), target, conditions=conditions.difference(names))
        left.mutations = [
            replace(
                each,
                sources=each.sources.difference(names),
                conditions=each.conditions.difference(names, (each.root,) if each.is_guess else ()),
            )
            for each in self.mutations
            if each.root not in names
        ]
        left.settle()
        return left

    def names_of_same(self, spot: Spot) -> frozenset[Spot]:
        """Return the nodes that hold the object of the given node because of an assignment."""
        if self._both is None:
            self._both = defaultdict(set)
            for name, others in self.same.items():
                for other in others:
                    self._both[name].add(other)
                    self._both[other].add(name)
        return frozenset(_reached(spot, self._both) | {spot})

    def _all_names_of(self, root: Spot) -> set[Spot]:
        return _reached(root, self.aliases) | {root}

    def is_used(self, spot: Spot) -> bool:
        """Whether the value of the node may affect more than output for people."""
        if self._used is None:
            self._used = frozenset(_reached(USED, self._from))
        return spot in self._used

    def computed_from(self, source: Spot) -> set[Spot]:
        """Return the nodes whose values are computed from the node `source`, including `source` itself.

        The search ignores edges from conditions.
        """
        return _reached(source, self._computed) | {source}

    def is_written(self, spot: Spot) -> bool:
        """Whether the code assigns computed values to the node, and not only constants."""
        sources = (source for source, targets in self._computed.items() if spot in targets and source != spot)
        return any(source in self._from or UNKNOWN in self._all_names_of(source) for source in sources)

    def named(self, name: str) -> list[Spot]:
        """Return the nodes of all attributes and variables with this name, in all functions."""
        if self._named is None:
            self._named = defaultdict(list)
            for spot in sorted(self._to.keys() | self._from.keys()):
                self._named[spot.rpartition("|")[2].removeprefix(".")].append(spot)
        return self._named.get(name, [])

    def depends_on_itself(self, spot: Spot) -> bool:
        """Whether the next value of the node follows from its previous value without a path through a library.

        For example, the result is False for a loss: the loss changes a model, and the next loss follows from the model.
        A loss thus has no state of its own.
        """
        found: set[Spot] = set()
        waiting = [spot]
        while waiting:
            for following in self._to.get(waiting.pop(), ()):
                if following not in found:
                    found.add(following)
                    if UNKNOWN not in self._all_names_of(following):
                        waiting.append(following)
        return spot in found

    def follows_from_process(self, spot: Spot) -> bool:
        """Whether the values of the node are computed from times, process ids or other values of the process."""
        if self._of_process is None:
            self._of_process = self.computed_from(PROCESS)
        return spot in self._of_process


def _reached(start: Spot, edges: defaultdict[Spot, set[Spot]]) -> set[Spot]:
    found: set[Spot] = set()
    waiting = [start]
    while waiting:
        for spot in edges.get(waiting.pop(), ()):
            if spot not in found:
                found.add(spot)
                waiting.append(spot)
    return found


def _is_of(function: Function, only: Collection[tuple[str, str]]) -> bool:
    """Whether the function is in `only`, or encloses a function in `only`.

    An outer function assigns names that an inner function reads.
    """
    start = f"{function.name}.<locals>."
    names = {name for file, name in only if file == function.file}
    return function.is_module or function.name in names or any(name.startswith(start) for name in names)


class Index:
    """The functions of some files, by the names under which code calls the functions."""

    def __init__(self, files: Iterable[str], *, only: Collection[tuple[str, str]] | None = None) -> None:
        """`only` contains the functions to index, by file and qualified name. None means all functions."""
        found = (function for file in dict.fromkeys(files) for function in functions_of(file))
        self.all = [each for each in found if only is None or _is_of(each, only)]
        self._functions: defaultdict[str, list[Function]] = defaultdict(list)
        self._methods: defaultdict[str, list[Function]] = defaultdict(list)
        self.classes: defaultdict[str, dict[str, Function]] = defaultdict(dict)
        for each in self.all:
            name = each.name.rpartition(".")[2]
            if each.in_class:
                self._methods[name].append(each)
                self.classes[each.in_class][name] = each
            elif not each.is_module:
                self._functions[name].append(each)

    def functions(self, name: str) -> list[Function]:
        return self._functions.get(name, [])

    def methods(self, name: str) -> list[Function]:
        return self._methods.get(name, [])

    def properties(self, name: str) -> list[Function]:
        """Return the methods that run if code reads an attribute of this name."""
        return [each for each in self._methods.get(name, []) if each.is_property]

    def setters(self, name: str) -> list[Function]:
        """Return the methods that run if code assigns an attribute of this name."""
        return [each for each in self._methods.get(name, []) if each.is_setter]

    def classes_with(self, method: str) -> Iterator[str]:
        return (name for name, methods in self.classes.items() if method in methods)


Spots = frozenset[Spot]
NOTHING: Spots = frozenset()


def result_of(function: Function) -> Spot:
    """Return the graph node of the return value of a function."""
    return f"{function.file}|{function.name}|return"


def call_of(function: Function) -> Spot:
    """Return the graph node that represents calls of a function."""
    return f"{function.file}|{function.name}|()"


@dataclass(frozen=True)
class MethodCall:
    """A call of a method on an object."""

    base: Spots
    given: Spots
    conditions: Spots
    method: str
    is_statement: bool


@dataclass(frozen=True)
class Binding:
    """The arguments of a call, and the parameters of a user's function that the call may reach."""

    function: Function
    base: Spots
    """The object of the call. The set is empty if Python's collections have no method with the name of the function."""
    given: tuple[tuple[Spot, Spots, Spots], ...]
    """For each parameter: its node, the nodes from which its value follows, and the nodes that may hold its object."""
    conditions: Spots


@dataclass
class CodeFacts:
    """The data-flow edges, calls and bindings in the functions of some files."""

    index: Index
    flows: Flows = field(default_factory=Flows)
    method_calls: list[MethodCall] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """Names of the functions that the analysed functions call."""
