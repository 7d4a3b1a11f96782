"""Finds the names of values at the place where a recipe is built or the loop is, from code objects alone."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from segue.continuity.code_hash import codes_of

_LOCAL = ".<locals>."


def name_of_definition(found: types.FunctionType | type, scopes: Iterable[types.CodeType]) -> str:
    """Return the name of a function or class, if one of these functions or their module defines it.

    Otherwise the name is empty.
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
    """Whether a closure variable of a function belongs to one of these functions, and not to a function in between."""
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
    """Outer variables to which a function, or a function inside it, assigns."""
    return frozenset(
        str(each.argval)
        for inner in codes_of(code)
        for each in dis.get_instructions(inner)
        if each.opname == "STORE_GLOBAL" or (each.opname == "STORE_DEREF" and each.argval in inner.co_freevars)
    )
