"""Describes where a value is: its path, a function that reads it again, and its expression in the user's code."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from segue.continuity.code_hash import codes_of

Get = Callable[[], Any]


class Leaf(NamedTuple):
    """A value, with a function that reads it again."""

    path: str
    place: str
    """The type of the variable, e.g. closure variable or attribute."""
    root: str
    """The component or the recipe field from which the value was first reached."""
    get: Get
    is_registered: bool = False
    """Whether the root is a component."""
    at: ValuePlace | None = None
    """The place of the value, with the places around it, or None if this process did not reach the value."""


def fetched(function: str, name: str) -> str:
    """Return the expression for a variable of a function, or an empty text if the function has no expression."""
    return f'segue.Variables({function}, "{name}").get("{name}")' if function else ""


MODULE_VARIABLE = "module variable"


class ValuePlace(NamedTuple):
    """The place of a value: its path and its expression in the user's code."""

    path: str
    what: str
    get: Get
    expression: str = ""
    """The expression for the value in the user's code. The text is empty if no expression leads to the value."""
    holder: str = ""
    """The expression for the holder of the variable `name`: a function, a module, a class or an object."""
    name: str = ""
    """Name of the variable in its holder."""
    outer: ValuePlace | None = None

    def part(self, name: str, what: str, get: Get, *, expression: str = "", holder: str | None = None) -> ValuePlace:
        """Return the place of a part of the object at this place.

        If `holder` is not given, the holder of the part is the object at this place.
        """
        return ValuePlace(
            f"{self.path}.{name}" if self.path else name,
            what,
            get,
            expression,
            self.expression if holder is None else holder,
            name,
            self,
        )

    def within(self, get: Get, expression: str) -> ValuePlace:
        """Return the place of the wrapped object, which has the same path as the wrapper."""
        return self._replace(get=get, expression=expression)

    def dotted(self, name: str) -> str:
        """Return the expression for an attribute of the object at this place."""
        if not self.expression:
            return ""
        return f"{self.expression}.{name}" if name.isidentifier() else f'{self.expression}.get_submodule("{name}")'


_LOCAL = ".<locals>."


def name_of_definition(found: types.FunctionType | type, scopes: Iterable[types.CodeType]) -> str:
    """Return the name of a function or class that one of the `scopes` or their module defines.

    The name is empty if neither a scope nor its module defines the function or class.
    """
    known: dict[str, Any]
    if isinstance(found, types.FunctionType):
        # The name in the code object is used, because a decorator may give a function the name of another function.
        full, known = found.__code__.co_qualname, found.__globals__
        file: Any = found.__code__.co_filename
    else:
        full, known = found.__qualname__, vars(sys.modules.get(found.__module__, types))
        file = known.get("__file__")
    for scope in scopes:
        name = full.removeprefix(f"{scope.co_qualname}{_LOCAL}")
        is_local = name != full and name.isidentifier() and name in (*scope.co_varnames, *scope.co_cellvars)
        if file == scope.co_filename and (is_local or known.get(full) is found):
            return name if is_local else full
    return ""


def is_variable_of(function: types.FunctionType, name: str, scopes: Iterable[types.CodeType]) -> bool:
    """Whether a closure variable of a function belongs to one of the `scopes`, and not to a function in between."""
    for scope in scopes:
        if name not in scope.co_cellvars or function.__code__.co_filename != scope.co_filename:
            continue
        between = function.__code__.co_qualname.removeprefix(f"{scope.co_qualname}{_LOCAL}")
        if between == function.__code__.co_qualname:
            continue
        *outer, _ = between.split(_LOCAL)
        if not any(name in code.co_cellvars for code in codes_of(scope) if code is not scope and code.co_name in outer):
            return True
    return False


@lru_cache(maxsize=4096)
def names_rebound(code: types.CodeType) -> frozenset[str]:
    """Return the outer variables that a function, or a function inside it, assigns."""
    return frozenset(
        str(each.argval)
        for inner in codes_of(code)
        for each in dis.get_instructions(inner)
        if each.opname == "STORE_GLOBAL" or (each.opname == "STORE_DEREF" and each.argval in inner.co_freevars)
    )
