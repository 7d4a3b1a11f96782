"""Reads the expressions of one function, and adds edges to the graph of flows: where each value goes, and which objects
a call may change."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from segue.continuity.carried.calls import (
    computes,
    gives_value,
    is_of_process,
    makes_plain,
    mutates,
    overwrites,
    shows,
    words_of,
)
from segue.continuity.carried.flows import (
    COLLECTION,
    NOTHING,
    PROCESS,
    UNKNOWN,
    USED,
    AttributeChange,
    Binding,
    CodeFacts,
    MethodCall,
    Mutation,
    Spot,
    Spots,
    call_of,
    result_of,
    spot_of,
)
from segue.continuity.carried.source import Function


def _attribute_of_call(node: ast.Call) -> ast.Attribute | None:
    """Return the attribute that a call of `getattr` or `setattr` with a literal name reads or sets."""
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[holder, ast.Constant(value=str(name)), *_]):
            return ast.copy_location(ast.Attribute(holder, name, ast.Load()), node)
        case _:
            return None


_COLLECTIONS = frozenset({"dict", "list", "set", "deque", "Counter", "defaultdict", "OrderedDict"})


class Expressions:
    """The expressions of one function."""

    def __init__(self, function: Function, found: CodeFacts) -> None:
        self._function, self._found = function, found
        self._index, self._flows, self._called = found.index, found.flows, found.called
        self._filling: set[Spot] = set()
        """Collections, and variables without a value, that the current statement fills."""
        self._conditions: list[Spots] = [frozenset({call_of(function)}) if not function.is_module else NOTHING]

    @property
    def _now(self) -> Spots:
        """Return the nodes of the graph whose values decide whether the current statement runs."""
        return frozenset().union(*self._conditions)

    def _to(self, sources: Iterable[Spot], target: Spot | None) -> None:
        if target is not None:
            now = self._now - {target} if target in self._filling else self._now
            self._flows.add(sources, target, conditions=now)

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
                self._set_property(target.attr, sources)
                self._note_change(target, is_assignment=True)
                if alias is not None:
                    self._flows.aliases[f".{target.attr}"] |= self._origins(alias)
                if not self._is_self(target.value):
                    self._mutate(target.value, sources)
            case ast.Subscript():
                self._mutate(target.value, sources | self._reads(target.slice))
            case _:
                return

    def _mutate(
        self, holder: ast.expr, sources: Spots, *, conditions: Spots | None = None, keeps: bool = False
    ) -> None:
        """Record a change of an object. `keeps` means that the object keeps its earlier content."""
        self._note_change(holder, is_assignment=False)
        for root in self._origins(holder):
            given = self._now if conditions is None else conditions
            given |= {root} if keeps else set()
            # If there was no earlier result, the stored result does not follow from one.
            given -= {root} if root in self._filling else set()
            self._flows.mutations.append(Mutation(root, sources, given, is_guess=conditions is not None))

    def _note_change(self, changed: ast.expr, *, is_assignment: bool) -> None:
        """Record that a statement assigns an attribute of a variable's object, or changes the attribute in place."""
        while isinstance(changed, ast.Subscript):
            changed = changed.value
        if not isinstance(changed, ast.Attribute) or (holder := self._place_of(changed.value)) is None:
            return
        name = f"{changed.value.id}.{changed.attr}" if isinstance(changed.value, ast.Name) else ""
        kind = (is_assignment, f".{changed.attr}" in self._filling)
        change = AttributeChange(holder, changed.attr, name, self._function, changed.lineno, *kind)
        self._flows.changes.append(change)

    def _place_of(self, node: ast.expr) -> Spot | None:
        """Return the node of a variable or an attribute in the graph."""
        match node:
            case ast.Name():
                return spot_of(self._function, node.id)
            case ast.Attribute():
                return f".{node.attr}"
            case _:
                return None

    def _is_self(self, node: ast.expr) -> bool:
        first = self._function.parameters[:1] if self._function.in_class else []
        return isinstance(node, ast.Name) and node.id in (*first, "self", "cls")

    def _origins(self, node: ast.expr) -> set[Spot]:
        """Return the graph nodes of the existing objects that an expression may return.

        The node `UNKNOWN` represents objects of libraries.
        """
        match node:
            case ast.Name():
                spot = spot_of(self._function, node.id)
                return {spot or UNKNOWN} if spot is not None or not hasattr(builtins, node.id) else set()
            case ast.Attribute():
                return {f".{node.attr}"} | (set() if self._is_self(node.value) else self._origins(node.value))
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
            return {result_of(each) for each in self._index.functions(words[0])}
        return {UNKNOWN}

    def _reads(self, node: ast.AST | None) -> Spots:
        match node:
            case None | ast.Constant():
                return NOTHING
            case ast.Name():
                return self._name(node)
            case ast.Dict() | ast.List() | ast.Set():
                return self._parts(node) | {COLLECTION}
            case ast.Attribute():
                return self._reads(node.value) | {f".{node.attr}"} | self._results_of_property(node.attr)
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
                return NOTHING
            case _:
                return self._parts(node)

    def _results_of_property(self, name: str) -> Spots:
        found = self._index.properties(name)
        self._called.update(name for _ in found)
        return frozenset(map(result_of, found))

    def _set_property(self, name: str, sources: Spots) -> None:
        for setter in self._index.setters(name):
            self._called.add(name)
            for parameter in setter.parameters[1:2]:
                self._to(sources, spot_of(setter, parameter))

    def _parts(self, node: ast.AST) -> Spots:
        return frozenset().union(*(self._reads(child) for child in ast.iter_child_nodes(node)))

    def _name(self, node: ast.Name) -> Spots:
        for each in self._index.functions(node.id):
            if self._function.home_of(node.id) is not None:
                self._flows.add([result_of(each)], USED)  # The function is passed to code that may call it.
        spot = spot_of(self._function, node.id)
        return frozenset({spot}) if spot is not None else NOTHING

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Spots:
        found: set[Spot] = set()
        for each in node.generators:
            source = self._reads(each.iter)
            found |= source | frozenset().union(*map(self._reads, each.ifs))
            for name in ast.walk(each.target):
                if isinstance(name, ast.Name):
                    self._to(source, spot_of(self._function, name.id))
        inner = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        made = frozenset(found).union(*map(self._reads, inner))
        return made if isinstance(node, ast.GeneratorExp) else made | {COLLECTION}

    def _call(self, node: ast.Call, *, is_statement: bool) -> Spots:
        words = words_of(node.func)
        given = frozenset().union(*map(self._reads, node.args), *(self._reads(each.value) for each in node.keywords))
        if is_of_process(words):
            return given | {PROCESS}
        if not words or not isinstance(node.func, (ast.Name, ast.Attribute)):
            self._flows.add(given, USED)
            return given | self._reads(node.func)
        is_own = len(words) == 1 and bool(self._index.functions(words[0]))  # E.g. a function `log` of the user.
        if not is_own and shows(words, has_arguments=bool(node.args or node.keywords)):
            return NOTHING
        attribute = _attribute_of_call(node)
        if attribute is not None and words == ["setattr"]:
            self._store(attribute, given, alias=node.args[2])
            return NOTHING
        if attribute is not None:
            return given | self._reads(attribute)
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
            return frozenset(result_of(function) for function in own)
        if computes([name]):
            return given | {COLLECTION} if name in _COLLECTIONS else given
        self._flows.add(given, USED)
        if is_statement:
            self._to(NOTHING, USED)
        spot = spot_of(self._function, name)
        return given | ({spot} if spot is not None else set())

    def _call_of_method(self, name: str, node: ast.Call, given: Spots, *, is_statement: bool) -> Spots:
        assert isinstance(node.func, ast.Attribute)
        base = self._reads(node.func.value)
        own = self._index.methods(name)
        of_collections = base if mutates(name) or gives_value(name) else NOTHING
        for function in own:
            self._called.add(name)
            self._bind(function, node, skip=1, base=of_collections)
        own_results = frozenset(map(result_of, own))
        if self._is_self(node.func.value) and own:
            return base | own_results
        if self._index.functions(name) and isinstance(node.func.value, ast.Name):
            self._called.add(name)  # The method may be a function of a module of the user.
            for function in self._index.functions(name):
                self._bind(function, node, skip=0)
            own_results |= frozenset(map(result_of, self._index.functions(name)))
        if mutates(name):
            self._mutate(
                node.func.value, given, keeps=not overwrites(name) and not any(map(overwrites, words_of(node.func)))
            )
        elif not gives_value(name):
            if not own and not self._is_self(node.func.value):
                # The arguments may change the object; but if an argument is a time, the object does not become a time.
                self._mutate(
                    node.func.value, NOTHING, conditions=base | given | (self._now if is_statement else NOTHING)
                )
            self._found.method_calls.append(MethodCall(base, given, self._now, name, is_statement))
        return (NOTHING if overwrites(name) else base) | given | own_results

    def _bind(self, function: Function, node: ast.Call, *, skip: int, base: Spots = NOTHING) -> None:
        """Connect the arguments of a call with the parameters of a function of the user."""
        names = function.parameters[skip if function.in_class else 0 :]
        given: list[tuple[str, ast.expr]] = []
        for number, value in enumerate(node.args):
            if isinstance(value, ast.Starred) or number >= len(names):
                given += [(name, value) for name in names[number:]]
            else:
                given.append((names[number], value))
        given += [(each.arg, each.value) for each in node.keywords if each.arg is not None]
        given += [(name, each.value) for each in node.keywords if each.arg is None for name in names]
        spots = ((spot_of(function, name), value) for name, value in given)
        known = [(spot, each) for spot, each in spots if spot is not None]
        found = tuple((spot, self._reads(each), frozenset(self._origins(each))) for spot, each in known)
        self._found.bindings.append(Binding(function, base, found, self._now))
        for spot, each in known:
            self._flows.add_same(spot, self._place_of(each))
