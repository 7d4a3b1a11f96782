"""What reading the functions of some files gives: flows, calls of methods, and arguments of calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from segue.continuity.carried.flows import Flows, Index, Spot
from segue.continuity.carried.source import Function

Spots = frozenset[Spot]
NOTHING: Spots = frozenset()


def result_of(function: Function) -> Spot:
    """The place of a function's return value."""
    return f"{function.file}|{function.name}|return"


def call_of(function: Function) -> Spot:
    """The place that stands for whether a function is called."""
    return f"{function.file}|{function.name}|()"


@dataclass(frozen=True)
class MethodCall:
    """A call of a method; the method is the user's if its object is."""

    base: Spots
    given: Spots
    conditions: Spots
    method: str
    is_statement: bool


@dataclass(frozen=True)
class Binding:
    """Arguments of a call, with the parameters of a user's function that it may call."""

    function: Function
    base: Spots
    """The object, for a method whose name Python's own collections also have; nothing for other calls."""
    given: tuple[tuple[Spot, Spots, Spots], ...]
    """For each parameter, the places that it follows from, and the places of which it may be another name."""
    conditions: Spots


@dataclass
class Found:
    """The result of reading the functions of some files."""

    index: Index
    flows: Flows = field(default_factory=Flows)
    method_calls: list[MethodCall] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """Names of the functions that are called among themselves."""
