"""Reads the source code of the user's functions as syntax trees, with the scope of each name."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
MODULE = "<module>"
_MOST_BYTES = 1_000_000


@dataclass(eq=False)
class Function:
    """One function of a file, or the code of the file outside of functions."""

    file: str
    name: str
    """The qualified name, as in Python. The name is `<module>` for the code outside of functions."""
    node: Definition | ast.Module
    parent: Function | None
    """The enclosing function or file. If a class encloses the function, the value is the scope around the class."""
    in_class: str = ""
    """The class of a method. The value is empty for a function outside of a class."""
    bound: set[str] = field(default_factory=set)
    elsewhere: dict[str, bool] = field(default_factory=dict)
    """The names that the function declares `global` (True) or `nonlocal` (False)."""

    @property
    def body(self) -> list[ast.stmt]:
        return self.node.body

    @property
    def parameters(self) -> list[str]:
        if isinstance(self.node, ast.Module):
            return []
        given = self.node.args
        return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]

    @property
    def is_property(self) -> bool:
        """Whether reading an attribute calls the function."""
        return bool({"property", "cached_property"} & self._decorators)

    @property
    def is_setter(self) -> bool:
        """Whether assigning an attribute calls the function."""
        return "setter" in self._decorators

    @property
    def _decorators(self) -> set[str]:
        found = [] if isinstance(self.node, ast.Module) else self.node.decorator_list
        return {ast.unparse(each).rpartition(".")[2] for each in found}

    @property
    def is_module(self) -> bool:
        return self.parent is None

    def home_of(self, name: str) -> Function | None:
        """Return the scope of a name in this function. Return None for a built-in name."""
        if self.elsewhere.get(name):
            return self._module
        scope: Function | None = self if name not in self.elsewhere else self.parent
        while scope is not None:
            if name in scope.bound and (name not in scope.elsewhere):
                return scope
            if scope.elsewhere.get(name):
                return self._module
            scope = scope.parent
        return None

    @property
    def _module(self) -> Function:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


@lru_cache(maxsize=256)
def functions_of(file: str) -> tuple[Function, ...]:
    """Return the functions of a file, beginning with `<module>`.

    The result is empty if the file cannot be read or is not Python.
    """
    try:
        source = Path(file).read_bytes()
        if len(source) > _MOST_BYTES:
            return ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The import of the file shows these warnings.
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    module = Function(file, MODULE, tree, None)
    _bind(module)
    return (module, *_within(tree, module, prefix="", in_class=""))


def calls_method(file: str, name: str, method: str) -> bool:
    """Whether the code of a file calls this method on a variable or attribute of this name."""
    nodes = (node for function in functions_of(file)[:1] for node in ast.walk(function.node))
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(
        isinstance(each, ast.Attribute) and each.attr == method and ast.unparse(each.value) == name for each in called
    )


def _within(node: ast.AST, parent: Function, *, prefix: str, in_class: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            made = Function(parent.file, prefix + child.name, child, parent, in_class)
            _bind(made)
            yield made
            yield from _within(child, made, prefix=f"{prefix}{child.name}.<locals>.", in_class="")
        elif isinstance(child, ast.ClassDef):
            yield from _within(child, parent, prefix=f"{prefix}{child.name}.", in_class=child.name)
        else:
            yield from _within(child, parent, prefix=prefix, in_class=in_class)


def _bind(scope: Function) -> None:
    """Fill in the names that belong to the scope."""
    scope.bound.update(scope.parameters)
    if not isinstance(scope.node, ast.Module):
        scope.bound.update(each.arg for each in (scope.node.args.vararg, scope.node.args.kwarg) if each is not None)
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            scope.bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope.bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            scope.bound.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            scope.bound.add(node.name)
        elif isinstance(node, ast.Global):
            scope.elsewhere |= dict.fromkeys(node.names, True)
        elif isinstance(node, ast.Nonlocal):
            scope.elsewhere |= dict.fromkeys(node.names, False)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function.

    The nodes include nested functions and classes, but not the nodes inside nested functions and classes.
    """
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from own_nodes(child)
        elif isinstance(child, Definition):
            for default in (*child.args.defaults, *filter(None, child.args.kw_defaults), *child.decorator_list):
                yield default
                yield from own_nodes(default)


def function_at(file: str, name: str, first_line: int) -> Function | None:
    """Return the function with this qualified name that begins at this line.

    A function begins at its first decorator.
    """
    found = [each for each in functions_of(file) if each.name == name]
    if name == MODULE or len(found) == 1:
        return found[0] if found else None
    return next((each for each in found if first_line in _first_lines(each.node)), None)


def _first_lines(node: Definition | ast.Module) -> tuple[int, ...]:
    if isinstance(node, ast.Module):
        return ()
    return (node.lineno, *(each.lineno for each in node.decorator_list))
