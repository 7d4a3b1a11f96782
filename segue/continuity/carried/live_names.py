"""Finds the names that each iteration of a loop reads before it writes them.

If a loop reads a name before it writes the name, the loop carries the value to the next iteration. The module does a
backward data-flow analysis of one function. A name is live at a point of the code if code after this point may read the
name before writing it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from segue.continuity.carried.source import Definition, Function, functions_of, own_nodes

Names = frozenset[str]
_NONE: Names = frozenset()
Loop = ast.For | ast.AsyncFor | ast.While
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def loops_at(function: Function, line: int) -> list[Loop]:
    """Return the loops of a function that contain this line, from the outermost to the innermost loop."""
    loops = (node for node in own_nodes(function.node) if isinstance(node, Loop))
    return [loop for loop in loops if loop.lineno <= line <= (loop.body[-1].end_lineno or 0)]


def targets_of(loop: Loop) -> Names:
    """Return the names that the loop statement itself assigns."""
    nodes = ast.walk(loop.target) if not isinstance(loop, ast.While) else ()
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def live_in(function: Function, loop: Loop) -> Names:
    """Return the names that an iteration may read before it writes them.

    The analysis assumes that an inner `for` loop makes at least one iteration, because it runs over micro-batches,
    samples or parameters. Without this assumption, the names that the inner loop assigns would seem to keep values of
    an earlier step.
    """
    return _Liveness(function).where_an_iteration_begins(loop)


def live_at_entry(function: Function, *, at_end: str = "") -> Names:
    """Return the names that are live at the start of the function.

    `at_end` contains the names that code reads after the function has returned.
    """
    after = frozenset({at_end} if at_end else ())
    return _Liveness(function, after).where_the_function_begins()


def bound_before(function: Function, loop: Loop) -> Names:
    """Return the names that are assigned in lines before the loop."""
    lines = (pair for node in own_nodes(function.node) for pair in _writes(node))
    return frozenset(name for name, line in lines if line < loop.lineno)


def written_in(function: Function, loop: Loop) -> dict[str, int]:
    """Return the names that an iteration may write, each with the first line that writes the name."""
    inner = _inner_functions(function)
    found: dict[str, int] = {}
    used: list[str] = []
    for statement in loop.body:
        for node in (statement, *own_nodes(statement)):
            for name, line in _writes(node):
                found.setdefault(name, line)
            used += [node.id] if isinstance(node, ast.Name) else [node.name] if isinstance(node, Definition) else []
    seen: set[str] = set()
    while used:
        name = used.pop()
        if name in seen or name not in inner:
            continue
        seen.add(name)
        for written, line in _writes_outside(inner[name]):
            found.setdefault(written, line)
        used += _read_from_around(inner[name])
    return found


def _writes(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_name(node):
        yield _of_name(node), node.lineno
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, node.lineno


def _writes_outside(nested: Function) -> Iterator[tuple[str, int]]:
    """Return the names that a nested function writes in the enclosing function."""
    for node in own_nodes(nested.node):
        yield from ((name, line) for name, line in _writes(node) if name in nested.elsewhere)


def _of_name(node: ast.expr) -> str:
    """Return the name `variable.attribute` for an attribute of a variable. The name is empty for other expressions."""
    return (
        f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    )


def _inner_functions(function: Function) -> dict[str, Function]:
    inner = (each for each in functions_of(function.file) if each.parent is function and not each.in_class)
    return {each.node.name: each for each in inner if isinstance(each.node, Definition)}


@dataclass(frozen=True)
class _After:
    """The names that are live after a statement, for each exit of the statement (e.g. `break` or `return`)."""

    end: Names = _NONE
    broken: Names = _NONE
    continued: Names = _NONE
    raised: Names = _NONE


@dataclass
class _Liveness:
    function: Function
    _at_end: Names = _NONE
    """The names that code reads after the function has returned."""
    _targets: dict[int, Names] = field(default_factory=dict)
    """The names that are live at the start of an iteration, by the id of the analysed loop."""
    _inner: dict[str, Names] = field(default_factory=dict)
    _methods: set[str] = field(default_factory=set)
    """Names of all methods of the classes in the file."""
    _attributes: set[str] = field(default_factory=set)
    """The attributes that the function assigns, as `variable.attribute`."""

    def __post_init__(self) -> None:
        inner = {name: _read_from_around(each) for name, each in _inner_functions(self.function).items()}
        self._inner = {name: _with_called(name, inner) for name in inner}
        methods = (each.name for each in functions_of(self.function.file) if each.in_class)
        self._methods = {name.rpartition(".")[2] for name in methods}
        nodes = (node for node in own_nodes(self.function.node) if isinstance(node, ast.Attribute))
        self._attributes = {_of_name(node) for node in nodes if isinstance(node.ctx, ast.Store) and _of_name(node)}

    def where_the_function_begins(self) -> Names:
        return self._block(self.function.body, _After(end=self._at_end))

    def where_an_iteration_begins(self, loop: Loop) -> Names:
        self._block(self.function.body, _After())
        return self._targets.get(id(loop), _NONE)

    def _block(self, statements: Sequence[ast.stmt], after: _After) -> Names:
        for statement in reversed(statements):
            after = replace(after, end=self._statement(statement, after))
        return after.end

    def _statement(self, node: ast.stmt, after: _After) -> Names:
        match node:
            case ast.If():
                branches = self._block(node.body, after) | self._block(node.orelse, after)
                return self._through(node.test, branches)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, after)
            case ast.Break():
                return after.broken
            case ast.Continue():
                return after.continued
            case ast.Return():
                return self._used(node.value) | self._at_end
            case ast.Raise():
                return self._used(node.exc, node.cause) | after.raised
            case ast.Try() | ast.TryStar():
                return self._try(node, after)
            case ast.With() | ast.AsyncWith():
                live = self._block(node.body, after)
                for item in reversed(node.items):
                    live = self._assigned([item.optional_vars] if item.optional_vars else [], live)
                    live = self._through(item.context_expr, live)
                return live
            case ast.Match():
                cases = [self._used(each.guard) | self._block(each.body, after) for each in node.cases]
                return self._through(node.subject, frozenset().union(after.end, *cases))
            case _:
                return self._simple(node, after.end)

    def _simple(self, node: ast.stmt, live: Names) -> Names:
        match node:
            case ast.Assign():
                return self._through(node.value, self._assigned(node.targets, live))
            case ast.AnnAssign():
                return self._through(node.value, self._assigned([node.target], live)) if node.value else live
            case ast.AugAssign():
                read = self._used(node.target)
                target = node.target
                own = frozenset({target.id if isinstance(target, ast.Name) else _of_name(target)})
                return self._through(node.value, live | read | own)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                given = (*node.args.defaults, *node.args.kw_defaults, *node.decorator_list)
                return (live - {node.name}) | self._used(*given)
            case ast.ClassDef():
                return (live - {node.name}) | self._used(node)
            case ast.Import() | ast.ImportFrom():
                return live - {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.Delete():
                return self._assigned(node.targets, live)
            case _:
                return self._through(node, live)

    def _loop(self, node: Loop, after: _After) -> Names:
        left = self._block(node.orelse, after)
        is_endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)
        head = _NONE if is_endless else left
        while True:
            inside = replace(after, end=head, broken=after.end, continued=head)
            begun = self._block(node.body, inside)
            self._targets[id(node)] = begun
            if isinstance(node, ast.While):
                again = self._through(node.test, begun | (_NONE if is_endless else left))
            else:
                again = self._assigned([node.target], begun) | left
            if again <= head:
                break
            head |= again
        if isinstance(node, ast.While):
            return head
        return self._through(node.iter, self._assigned([node.target], begun))

    def _try(self, node: ast.Try | ast.TryStar, after: _After) -> Names:
        last = self._block(node.finalbody, after)
        within = replace(after, end=last)
        handlers = [self._used(each.type) | self._block(each.body, within) for each in node.handlers]
        caught = frozenset().union(*handlers)
        whole = replace(within, end=self._block(node.orelse, within), raised=caught | after.raised)
        return self._block(node.body, whole) | caught

    def _assigned(self, targets: Iterable[ast.expr], live: Names) -> Names:
        """Return the names that are live before the assignments to `targets`.

        An assignment to a part of an object also reads the object.
        """
        targets = list(targets)
        nodes = [node for target in targets for node in ast.walk(target)]
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        stored |= {
            _of_name(node) for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        return (live - stored) | self._used(*targets)

    def _through(self, node: ast.AST, live: Names) -> Names:
        """Return the names that are live before an expression that itself assigns names."""
        named = {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
        return (live - named) | (self._used(node) - (named - self._used_to_name(node)))

    def _used_to_name(self, node: ast.AST) -> Names:
        values = (each.value for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
        return self._used(*values)

    def _used(self, *nodes: ast.AST | None) -> Names:
        found: set[str] = set()
        for node in nodes:
            if node is not None:
                self._add_used(node, found)
        return frozenset(found)

    def _add_used(self, node: ast.AST, found: set[str]) -> None:
        own: set[str] = set()
        if isinstance(node, _Comprehension):
            stores = (each for gen in node.generators for each in ast.walk(gen.target))
            own = {each.id for each in stores if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Lambda):
            given = node.args
            own = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
            found |= self._inner.get(node.id, _NONE)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _of_name(node):
            found.add(_of_name(node))
            if node.attr in self._methods:  # The method may read any attribute of the object.
                found |= {name for name in self._attributes if name.startswith(_of_name(node).partition(".")[0] + ".")}
        inside: set[str] = set()
        for child in ast.iter_child_nodes(node):
            self._add_used(child, inside)
        found |= inside - own


def _with_called(name: str, reads: Mapping[str, Names]) -> Names:
    """Return the outer names that a function reads, directly or through the functions that it calls."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = reads.get(waiting.pop(), _NONE) - found
        found |= new
        waiting += new
    return frozenset(found)


def _read_from_around(nested: Function) -> Names:
    """Return the names that a nested function reads from the enclosing function when it is called."""
    loads = (node for node in ast.walk(nested.node) if isinstance(node, ast.Name))
    own = nested.bound - nested.elsewhere.keys()
    return frozenset(node.id for node in loads if isinstance(node.ctx, ast.Load) or node.id in nested.elsewhere) - own
