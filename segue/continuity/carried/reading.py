"""Reads the user's functions into the graph of flows: one visit of each statement, none of it is run."""

from __future__ import annotations

import ast
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from segue.continuity.carried.calls import (
    computes,
    gives_value,
    is_of_process,
    makes_plain,
    mutates,
    shows,
    words_of,
)
from segue.continuity.carried.flows import PROCESS, UNKNOWN, USED, Flows, Index, Spot, spot_of
from segue.continuity.carried.source import Definition, Function

log = logging.getLogger(__name__)

Spots = frozenset[Spot]
_NONE: Spots = frozenset()
_SHOWN_BY = frozenset({"__repr__", "__str__", "__format__", "state_dict", "extra_repr"})
"""What Python calls to show an object, and what saves its state: nothing is trained by their results."""


@dataclass(frozen=True)
class _Unresolved:
    """A call of a method, which is one of the user's if its object is."""

    base: Spots
    given: Spots
    conditions: Spots
    method: str
    is_statement: bool


def flows_of(files: Iterable[str], *, only: Collection[tuple[str, str]] | None = None) -> Flows:
    """The graph of all functions in these files, or `only` of these by file and qualified name."""
    index, flows = Index(files, only=only), Flows()
    unresolved: list[_Unresolved] = []
    called: set[str] = set()
    for function in index.all:
        try:
            _Reader(function, index, flows, unresolved, called).read()
        except Exception:  # Nothing that only looks may end an attempt; what the function does is then not known.
            log.warning("not followed function=%s file=%s", function.name, function.file, exc_info=True)
    for function in index.all:
        name = function.name.rpartition(".")[2]
        if not function.is_module and name not in called and name not in _SHOWN_BY:
            flows.add([_result_of(function)], USED)  # A library calls it.
            for parameter in function.parameters[1 if function.in_class else 0 :]:
                spot = spot_of(function, parameter)
                if spot is not None:
                    flows.aliases[spot].add(UNKNOWN)
    for call in unresolved:
        _resolve(call, index, flows)
    flows.settle()
    return flows


def _resolve(call: _Unresolved, index: Index, flows: Flows) -> None:
    own = {f"class {name}" for name in index.classes_with(call.method)}
    if own and any(flows.follows(spot, own) for spot in call.base):
        return  # Its arguments and its result are known.
    flows.add(call.given, USED)
    if call.is_statement:
        flows.add([*call.base, *call.conditions], USED)


def _result_of(function: Function) -> Spot:
    return f"{function.file}|{function.name}|return"


def _call_of(function: Function) -> Spot:
    return f"{function.file}|{function.name}|()"


class _Reader:
    """Of one function."""

    def __init__(
        self, function: Function, index: Index, flows: Flows, unresolved: list[_Unresolved], called: set[str]
    ) -> None:
        self._function, self._index, self._flows = function, index, flows
        self._unresolved, self._called = unresolved, called
        self._filling: set[Spot] = set()
        """Collections and variables that are filled here because they lack something."""
        self._conditions: list[Spots] = [frozenset({_call_of(function)}) if not function.is_module else _NONE]

    def read(self) -> None:
        self._block(self._function.body)

    @property
    def _now(self) -> Spots:
        return frozenset().union(*self._conditions)

    @contextmanager
    def _under(self, condition: Spots) -> Iterator[None]:
        self._conditions.append(condition)
        yield
        self._conditions.pop()

    def _lacking(self, test: ast.expr) -> set[Spot]:
        """What a condition like `key not in known` or `known is None` finds without a value."""
        match test:
            case ast.Compare(ops=[ast.NotIn()], comparators=[holder]):
                return self._origins(holder)
            case ast.Compare(left=ast.Name() | ast.Attribute(), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                return self._origins(test.left)
            case _:
                return set()

    def _to(self, sources: Iterable[Spot], target: Spot | None) -> None:
        if target is not None:
            now = self._now - {target} if target in self._filling else self._now
            self._flows.add(sources, target, conditions=now)

    def _decide(self) -> None:
        """What the function does from here on depends on the conditions in it."""
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
                self._store(node.target, self._reads(node.value) | self._reads(node.target))
            case ast.For() | ast.AsyncFor():
                source = self._reads(node.iter)
                self._store(node.target, source, alias=node.iter)
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
            case ast.Return():
                self._to(self._reads(node.value), _result_of(self._function))
                self._decide()
            case ast.Break() | ast.Continue():
                self._decide()
            case ast.Raise():
                self._flows.add(self._reads(node.exc), USED)
                self._decide()
            case ast.Assert():
                self._flows.add(self._reads(node.test), USED)
            case ast.Expr():
                self._expression(node.value)
            case ast.ClassDef():
                with self._under(_NONE):
                    self._block([each for each in node.body if not isinstance(each, Definition)])
            case _:
                return

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

    def _store(self, target: ast.expr, sources: Spots, *, alias: ast.expr | None = None) -> None:
        match target:
            case ast.Name():
                spot = spot_of(self._function, target.id)
                self._to(sources, spot)
                if spot is not None and alias is not None:
                    self._flows.aliases[spot] |= self._origins(alias)
            case ast.Tuple() | ast.List():
                for each in target.elts:
                    self._store(each, sources, alias=alias)
            case ast.Starred():
                self._store(target.value, sources, alias=alias)
            case ast.Attribute():
                self._to(sources, f".{target.attr}")
                if alias is not None:
                    self._flows.aliases[f".{target.attr}"] |= self._origins(alias)
                if not self._is_self(target.value):
                    self._mutate(target.value, sources)
            case ast.Subscript():
                self._mutate(target.value, sources | self._reads(target.slice))
            case _:
                return

    def _mutate(self, holder: ast.expr, sources: Spots, *, conditions: Spots | None = None) -> None:
        for root in self._origins(holder):
            given = self._now if conditions is None else conditions
            # A result that is kept where there was none yet follows from no earlier one.
            self._flows.mutations.append((root, sources, given - {root} if root in self._filling else given))

    def _is_self(self, node: ast.expr) -> bool:
        first = self._function.parameters[:1] if self._function.in_class else []
        return isinstance(node, ast.Name) and node.id in (*first, "self", "cls")

    def _origins(self, node: ast.expr) -> set[Spot]:
        """The places of which an expression may give an object that is not new; UNKNOWN: an object of a library."""
        match node:
            case ast.Name():
                spot = spot_of(self._function, node.id)
                return {spot} if spot is not None else set()
            case ast.Attribute():
                own = self._is_self(node.value) or not isinstance(node.value, ast.Name)
                # An attribute that nobody in these files assigns belongs to the object.
                return {f".{node.attr}"} if own else {f".{node.attr}", *self._origins(node.value)}
            case ast.Subscript() | ast.Starred() | ast.Await():
                return self._origins(node.value)
            case ast.IfExp():
                return self._origins(node.body) | self._origins(node.orelse)
            case ast.BoolOp():
                return set().union(*map(self._origins, node.values))
            case ast.NamedExpr():
                return self._origins(node.value)
            case ast.Call():
                return self._origins_of_call(node)
            case ast.Tuple() | ast.List():
                return set().union(*map(self._origins, node.elts)) if node.elts else set()
            case _:
                return set()

    def _origins_of_call(self, node: ast.Call) -> set[Spot]:
        words = words_of(node.func)
        if len(words) == 1 and words[0] in ("zip", "enumerate", "iter", "reversed", "next", "getattr", "sorted"):
            return set().union(*map(self._origins, node.args)) if node.args else set()
        if makes_plain(words) or (words and words[0] in self._index.classes):
            return set()
        if isinstance(node.func, ast.Attribute) and (gives_value(words[0]) or mutates(words[0])):
            return self._origins(node.func.value)
        if len(words) == 1 and self._index.functions(words[0]):
            return {_result_of(each) for each in self._index.functions(words[0])}
        return {UNKNOWN}

    def _reads(self, node: ast.AST | None) -> Spots:
        match node:
            case None | ast.Constant():
                return _NONE
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._reads(node.value) | {f".{node.attr}"}
            case ast.Call():
                return self._call(node, is_statement=False)
            case ast.Lambda():
                return self._reads(node.body)
            case ast.NamedExpr():
                found = self._reads(node.value)
                self._store(node.target, found, alias=node.value)
                return found
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Yield() | ast.YieldFrom():
                self._to(self._reads(node.value), USED)
                return _NONE
            case _:
                return frozenset().union(*(self._reads(child) for child in ast.iter_child_nodes(node)))

    def _name(self, node: ast.Name) -> Spots:
        for each in self._index.functions(node.id):
            if self._function.home_of(node.id) is not None:
                self._flows.add([_result_of(each)], USED)  # It is handed to somebody who may call it.
        spot = spot_of(self._function, node.id)
        return frozenset({spot}) if spot is not None else _NONE

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Spots:
        found: set[Spot] = set()
        for each in node.generators:
            source = self._reads(each.iter)
            found |= source | frozenset().union(*map(self._reads, each.ifs))
            for name in ast.walk(each.target):
                if isinstance(name, ast.Name):
                    self._to(source, spot_of(self._function, name.id))
        inner = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return frozenset(found).union(*map(self._reads, inner))

    def _call(self, node: ast.Call, *, is_statement: bool) -> Spots:
        words = words_of(node.func)
        given = frozenset().union(*map(self._reads, node.args), *(self._reads(each.value) for each in node.keywords))
        if is_of_process(words):
            return given | {PROCESS}
        if not words or not isinstance(node.func, (ast.Name, ast.Attribute)):
            self._flows.add(given, USED)
            return given | self._reads(node.func)
        if shows(words, has_arguments=bool(node.args or node.keywords)):
            return _NONE
        name = words[0]
        if len(words) == 1:
            return self._call_of_name(name, node, given, is_statement=is_statement)
        assert isinstance(node.func, ast.Attribute)
        if computes(words):
            return given | self._reads(node.func.value)
        return self._call_of_method(name, node, given, is_statement=is_statement)

    def _call_of_name(self, name: str, node: ast.Call, given: Spots, *, is_statement: bool) -> Spots:
        home = self._function.home_of(name)
        is_parameter = home is not None and name in home.parameters
        own = self._index.functions(name) if not is_parameter else []
        if name in self._index.classes and not is_parameter:
            made = self._index.classes[name].get("__init__")
            self._called.add("__init__")
            if made is not None:
                self._bind(made, node, skip=1)
            return given | {f"class {name}"}
        if own:
            self._called.add(name)
            for function in own:
                self._bind(function, node, skip=0)
            return frozenset(_result_of(function) for function in own)
        if computes([name]):
            return given
        self._flows.add(given, USED)
        if is_statement:
            self._to(_NONE, USED)
        spot = spot_of(self._function, name)
        return given | ({spot} if spot is not None else set())

    def _call_of_method(self, name: str, node: ast.Call, given: Spots, *, is_statement: bool) -> Spots:
        assert isinstance(node.func, ast.Attribute)
        base = self._reads(node.func.value)
        own = self._index.methods(name)
        for function in own:
            self._called.add(name)
            self._bind(function, node, skip=1)
        own_results = frozenset(map(_result_of, own))
        if self._is_self(node.func.value) and own:
            return base | own_results
        if self._index.functions(name) and isinstance(node.func.value, ast.Name):
            self._called.add(name)  # Of a module of the user's, perhaps.
            for function in self._index.functions(name):
                self._bind(function, node, skip=0)
            own_results |= frozenset(map(_result_of, self._index.functions(name)))
        if mutates(name):
            self._mutate(node.func.value, given | (base if name.endswith("_") else _NONE))
        elif not gives_value(name):
            if not own:
                # Its object may change by what it is given; times that it is given do not make it one.
                self._mutate(node.func.value, _NONE, conditions=base | given | (self._now if is_statement else _NONE))
            self._unresolved.append(_Unresolved(base, given, self._now, name, is_statement))
        return base | given | own_results

    def _bind(self, function: Function, node: ast.Call, *, skip: int) -> None:
        """Connect the arguments of a call with the parameters of a function of the user's."""
        names = function.parameters[skip if function.in_class else 0 :]
        given: list[tuple[str, ast.expr]] = []
        for number, value in enumerate(node.args):
            if isinstance(value, ast.Starred) or number >= len(names):
                given += [(name, value) for name in names[number:]]
            else:
                given.append((names[number], value))
        given += [(each.arg, each.value) for each in node.keywords if each.arg is not None]
        given += [(name, each.value) for each in node.keywords if each.arg is None for name in names]
        for name, value in given:
            spot = spot_of(function, name)
            if spot is not None:
                self._flows.add(self._reads(value), spot)
                self._flows.aliases[spot] |= self._origins(value)
        self._to(_NONE, _call_of(function))
