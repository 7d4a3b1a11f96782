"""Keeps the facts from reading the functions of some files: flows, method calls, and arguments of calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from segue.continuity.carried.flows import Flows, Index, Spot
from segue.continuity.carried.source import Function

Spots = frozenset[Spot]
NOTHING: Spots = frozenset()


def result_of(function: Function) -> Spot:
    """The place (see flows.py) of the return value of a function."""
    return f"{function.file}|{function.name}|return"


def call_of(function: Function) -> Spot:
    """The place (see flows.py) for the fact that a function is called."""
    return f"{function.file}|{function.name}|()"


@dataclass(frozen=True)
class MethodCall:
    """A call of a method. If the object belongs to the user's code, the method also belongs to it."""

    base: Spots
    given: Spots
    conditions: Spots
    method: str
    is_statement: bool


@dataclass(frozen=True)
class Binding:
    """The arguments of a call, and the parameters of a function of the user that may be called."""

    function: Function
    base: Spots
    """The object of the call, if Python's collections have a method of the same name. Otherwise this is empty."""
    given: tuple[tuple[Spot, Spots, Spots], ...]
    """For each parameter, the places from which its value follows, and the places that may be the same object."""
    conditions: Spots


@dataclass
class CodeFacts:
    """The facts from the functions of some files."""

    index: Index
    flows: Flows = field(default_factory=Flows)
    method_calls: list[MethodCall] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """Names of the functions that these functions call."""
