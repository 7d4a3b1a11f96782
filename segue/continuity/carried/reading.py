"""Builds the data-flow graph from the source of the user's functions, without running the code."""

from __future__ import annotations

import ast
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from segue.continuity.carried.calls import words_of
from segue.continuity.carried.expressions import Expressions
from segue.continuity.carried.flows import (
    COLLECTION,
    UNKNOWN,
    USED,
    CodeFacts,
    Flows,
    Index,
    MethodCall,
    Spot,
    Spots,
    call_of,
    result_of,
    spot_of,
)
from segue.continuity.carried.source import Definition, Function

log = logging.getLogger(__name__)

_SHOWN_BY = frozenset({"__repr__", "__str__", "__format__", "state_dict", "extra_repr"})
"""Methods that show an object or save its state. Training does not use their results."""


def flows_of(files: Iterable[str], *, only: Collection[tuple[str, str]] | None = None) -> Flows:
    """Return the graph of all functions in these files, or of the functions in `only` (file and qualified name)."""
    found = CodeFacts(Index(files, only=only))
    for function in found.index.all:
        try:
            _Statements(function, found).read()
        except Exception:  # An analysis must never end an attempt; the effects of this function stay unknown.
            log.warning("function not analysed function=%s file=%s", function.name, function.file, exc_info=True)
    _bind(found)
    for function in found.index.all:
        _connect_with_callers(function, found)
    for call in _unresolved(found):
        found.flows.add(call.given, USED)
        if call.is_statement:
            found.flows.add([*call.base, *call.conditions], USED)
    found.flows.settle()
    return found.flows


def _bind(found: CodeFacts) -> None:
    """Connect the arguments of calls with the parameters of the user's functions.

    If an object can only be a dict, its method `update` (for example) is the method of dict.
    """
    collections = found.flows.computed_from(COLLECTION)
    objects = {name: found.flows.computed_from(f"class {name}") for name in found.index.classes}
    for each in found.bindings:
        owner = objects.get(each.function.in_class, set())
        if each.base and not each.base.isdisjoint(collections) and each.base.isdisjoint(owner):
            continue
        for spot, sources, origins in each.given:
            found.flows.add(sources, spot)
            found.flows.aliases[spot] |= origins
        found.flows.add((), call_of(each.function), conditions=each.conditions)


def _connect_with_callers(function: Function, found: CodeFacts) -> None:
    """Add edges from and to a library for a function that no other function calls.

    The analysis assumes that a library calls the function and uses its result.
    """
    name = function.name.rpartition(".")[2]
    if function.is_module or name in found.called or name in _SHOWN_BY:
        return
    found.flows.add([result_of(function)], USED)
    for parameter in function.parameters[1 if function.in_class else 0 :]:
        spot = spot_of(function, parameter)
        if spot is not None:
            found.flows.aliases[spot].add(UNKNOWN)


def _unresolved(found: CodeFacts) -> Iterator[MethodCall]:
    """Return the method calls on objects of libraries."""
    objects = {name: found.flows.computed_from(f"class {name}") for name in found.index.classes}
    for call in list(found.method_calls):
        own = found.index.classes_with(call.method)
        if not any(not call.base.isdisjoint(objects[name]) for name in own):
            yield call


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_size(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in ("shape", "device", "dtype")
    name = node.func if isinstance(node, ast.Call) else None
    return (isinstance(name, ast.Name) and name.id == "len") or (
        isinstance(name, ast.Attribute) and name.attr == "size"
    )


class _Statements(Expressions):
    """The statements of one function."""

    def read(self) -> None:
        self._block(self._function.body)

    @contextmanager
    def _under(self, condition: Spots) -> Iterator[None]:
        self._conditions.append(condition)
        yield
        self._conditions.pop()

    def _lacking(self, test: ast.expr) -> set[Spot]:
        """Return the nodes that lack a value if a condition such as `key not in known` or `known is None` is true."""
        match test:
            case ast.BoolOp(op=ast.Or()):
                found = [self._lacking(each) for each in test.values]
                return set().union(*found) if all(found) else set()
            case ast.BoolOp(op=ast.And()):
                return set().union(*map(self._lacking, test.values))
            case ast.Compare(left=left, comparators=[right]) if _is_size(left) or _is_size(right):
                return (
                    self._origins(right if _is_size(left) else left)
                    if not (_is_size(left) and _is_size(right))
                    else {""}
                )
            case ast.Compare(ops=[ast.NotIn()], comparators=[holder]):
                return self._origins(holder)
            case ast.Compare(left=ast.Name() | ast.Attribute(), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                return self._origins(test.left)
            case _:
                return set()

    def _decide(self) -> None:
        """Record that all later effects of the function depend on the current conditions."""
        self._flows.add(frozenset().union(*self._conditions[1:]), USED)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value)
            case ast.AnnAssign() if node.value is not None:
                self._assign(node.target, node.value)
            case ast.AugAssign():
                sources = self._reads(node.value) | self._reads(node.target)
                self._store(node.target, sources)
                self._mutate(node.target, sources)  # A tensor or a list changes in place, under all of its names.
            case ast.Return():
                self._to(self._reads(node.value), result_of(self._function))
                self._decide()
            case ast.Break() | ast.Continue():
                self._decide()
            case ast.Raise() | ast.Assert():
                self._flows.add(self._reads(node), USED)
                self._decide()
            case ast.Expr():
                self._expression(node.value)
            case _:
                self._compound(node)

    def _compound(self, node: ast.stmt) -> None:
        match node:
            case ast.For() | ast.AsyncFor():
                source = self._reads(node.iter)
                self._take_item(node.target, node.iter, source)
                with self._under(source):
                    self._block(node.body)
                self._block(node.orelse)
            case ast.If() | ast.While():
                filled = self._lacking(node.test) - self._filling
                self._filling |= filled
                with self._under(self._reads(node.test)):
                    self._block(node.body)
                    self._filling -= filled
                    self._block(node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    found = self._reads(item.context_expr)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, found, alias=item.context_expr)
                self._block(node.body)
            case ast.Try() | ast.TryStar():
                for block in (node.body, *(each.body for each in node.handlers), node.orelse, node.finalbody):
                    self._block(block)
            case ast.Match():
                with self._under(self._reads(node.subject)):
                    for each in node.cases:
                        self._block(each.body)
            case ast.ClassDef():
                self._block([each for each in node.body if not isinstance(each, Definition)])
            case _:
                return

    def _take_item(self, target: ast.expr, items: ast.expr, source: Spots) -> None:
        """Store an item of the iterated object. With `zip`, each item comes from its own object."""
        parts = items.args if isinstance(items, ast.Call) and words_of(items.func) == ["zip"] else []
        if isinstance(target, ast.Tuple) and len(target.elts) == len(parts):
            for each, part in zip(target.elts, parts, strict=True):
                self._take_item(each, part, self._reads(part))
        else:
            self._store(target, source, alias=items)

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            self._call(node, is_statement=True)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            self._to(self._reads(node.value), USED)
        else:
            self._reads(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        pairs = isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List))
        if pairs and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            for one, other in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
                self._assign(one, other)
        else:
            self._store(target, self._reads(value), alias=value)
            self._flows.add_same(self._place_of(target), self._place_of(value))
