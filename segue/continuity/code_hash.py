"""Computes hashes of code, to detect changed functions and classes of a recipe since the checkpoint.

The hashes cover bytecode, so comments, formatting and line numbers do not change a hash. The hash of a function also
covers the user's code that the function calls. Hashes are comparable only between processes with the same Python
version.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from segue.continuity.object_walk import PLAIN, is_telling
from segue.continuity.recipe_diff import GLOBALS
from segue.credentials import names_secret
from segue.user_objects import installed_folders


def code_hashes(roots: Iterable[Any], *, home: str) -> dict[str, str]:
    """Return a hash of every function and class of the user that `roots` can reach, by qualified name.

    `home` is the top package of the recipe. The code of the package `home` is the user's code, even if it is installed.
    """
    hashes: dict[str, str] = {}
    waiting = list(roots)
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen or not is_users(found, home=home):
            continue
        seen.add(id(found))
        if isinstance(found, type):
            waiting.extend(found.__mro__[1:])
            waiting.extend(_functions_of(found))
        elif isinstance(found, types.FunctionType):
            # The code distinguishes functions of the same name, e.g. two lambdas in one line.
            name = f"{found.__module__}.{found.__qualname__}"
            hashes[name] = merged(
                hashes.get(name), xxhash.xxh3_64_hexdigest(bytes_of(found.__code__, doc=found.__doc__))
            )
            for read, value in _settings_read(found, home=home):
                path = f"{GLOBALS}{name}.{read}"
                if not names_secret(read):
                    hashes[path] = merged(hashes.get(path), _shown(value))
            waiting.extend(_called(found))
    return dict(sorted(hashes.items()))  # Sorted by name, because the order of the walk may depend on addresses.


def merged(before: str | None, new: str) -> str:
    """Return one hash for two hashes of the same name. The result does not depend on their order."""
    return new if before in (None, new) else ",".join(sorted({*str(before).split(","), new}))


def _functions_of(owner: type) -> Iterator[Any]:
    for value in vars(owner).values():
        if isinstance(value, (staticmethod, classmethod)):
            yield value.__func__
        elif isinstance(value, property):
            yield from (part for part in (value.fget, value.fset) if part is not None)
        else:
            yield inspect.getattr_static(value, "__wrapped__", value)


def _settings_read(function: types.FunctionType, *, home: str) -> Iterator[tuple[str, Any]]:
    """Yield the plain global values that a function reads, including attributes of the user's modules."""
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    for read, value in _globals_read(function):
        if isinstance(value, types.ModuleType):
            if is_users_module(value, home=home):
                held = ((name, vars(value)[name]) for name in sorted(names) if name in vars(value))
                yield from ((f"{read}.{name}", inner) for name, inner in held if _is_setting(name, inner))
        elif _is_setting(read, value):
            yield read, value


def _shown(value: Any) -> str:
    """Return a number as text. Return a hash of any other value, because it may be long or confidential."""
    if isinstance(value, (bool, int, float)):
        return repr(value)
    return xxhash.xxh3_64_hexdigest(repr(value).encode())


def _is_setting(name: str, value: Any) -> bool:
    return isinstance(value, PLAIN) and is_telling(name, value)


def bytes_of(code: types.CodeType, *, doc: str | None = None) -> bytes:
    """Return the parts of a code object that determine its behaviour."""
    consts: list[bytes] = []
    for number, const in enumerate(code.co_consts):
        if isinstance(const, types.CodeType):
            consts.append(bytes_of(const))
        elif number == 0 and doc is not None and const == doc:
            consts.append(b"doc")
        elif isinstance(const, frozenset):
            consts.append(repr(sorted(const, key=repr)).encode())
        else:
            consts.append(f"{type(const).__name__}{const!r}".encode())
    parts = (code.co_code, *consts, repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    return b"\0".join(parts)


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object, and the code objects of its nested functions."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_of(const)


def _globals_read(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the global names that a function reads but does not set, with their values."""
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    known = function.__globals__
    return [(name, known[name]) for name in sorted(names - _globals_set(function)) if name in known]


def _globals_set(function: types.FunctionType) -> set[str]:
    """Return the global names that a function sets, which are state and not settings."""
    return {
        str(instruction.argval)
        for code in codes_of(function.__code__)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_GLOBAL"
    }


def _called(function: types.FunctionType) -> Iterator[Any]:
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    for _, value in _globals_read(function):
        if isinstance(value, types.ModuleType):
            yield from (vars(value)[name] for name in names if name in vars(value))
        else:
            yield value if isinstance(value, (type, types.FunctionType)) else type(value)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # The name is not bound yet.
        yield value if isinstance(value, (type, types.FunctionType)) else type(value)


def is_users(found: Any, *, home: str) -> bool:
    """Whether a function or class belongs to the user's code."""
    if not isinstance(found, (type, types.FunctionType)):
        return False
    return _is_users_module(str(found.__module__), home)


def is_users_module(module: types.ModuleType, *, home: str) -> bool:
    """Whether a module belongs to the user's code."""
    return _is_users_module(module.__name__, home)


@cache
def _is_users_module(name: str, home: str) -> bool:
    top = name.partition(".")[0]
    if top == home:
        return True
    if top in sys.stdlib_module_names or top in ("torch", "numpy", "segue"):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    # A user typed code without a file, or a program of the user generated it.
    return file is None or not any(Path(file).is_relative_to(folder) for folder in installed_folders())
