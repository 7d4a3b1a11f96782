"""The variables that running loops carry from one iteration to the next, from the frames that run them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from segue.continuity.carried.flows import Flows, spot_of
from segue.continuity.carried.live_names import Loop, bound_before, live_in, loops_at, targets_of, written_in
from segue.continuity.carried.source import MODULE, Function, function_at, own_nodes

_LONGEST = 40


@dataclass(frozen=True)
class Running:
    """A function of the user's that is running, and its current place."""

    file: str
    name: str
    first_line: int
    line: int


@dataclass(frozen=True)
class CarriedName:
    """A variable that is live from one iteration to the next."""

    name: str
    function: str
    """Qualified name; `<module>` outside of functions."""
    file: str
    line: int
    """Line of the first statement in the loop that writes it; the loop's line if it is only changed in place."""
    loop_line: int
    """Line of the outermost loop that carries it."""
    is_rebound: bool
    """Whether the loop assigns it. Otherwise it is carried if its value changes in place."""
    is_used: bool
    """Whether it reaches more than the output that people are shown."""
    is_of_process: bool
    """Whether it follows from times and the like."""
    is_bound: bool
    """Whether it has a value before the loop."""
    is_global: bool
    """Whether it is a variable of the script or of a module, and not of a function."""
    initial: str = ""
    """The expression that it is assigned before the loop, as written."""
    is_constant: bool = False
    """Whether that expression is a constant, such as a number or a string."""
    derives_from: frozenset[str] = frozenset()
    """Names from which it is computed before the loop."""
    is_of_namespace: bool = False
    """Whether it is an attribute of a namespace that functions change under names of their own."""
    is_change_known: bool = True
    """Whether a statement was found that changes it."""
    bare_line: int = 0
    """Line of an assignment whose target cannot be an attribute (`:=`, or a name in a `case`); 0: there is none."""

    @property
    def path(self) -> str:
        """The key by which a later attempt knows the variable."""
        return f"{self.function}:{self.name}"

    @property
    def counts(self) -> bool:
        return self.is_used and not self.is_of_process


@dataclass(frozen=True)
class LoopNames:
    """The variables of one function's running loops."""

    carried: dict[str, CarriedName]
    """By name."""
    fresh: frozenset[str]
    """Those that each iteration makes anew; attributes as `variable.attribute`."""
    line: int
    """Line of the outermost of the loops."""


def names_in_loops(running: Running, flows: Flows) -> LoopNames | None:
    """The variables of the loops that a function is in; None: it is in no loop, or its source cannot be read."""
    function = function_at(running.file, running.name, running.first_line)
    loops = loops_at(function, running.line) if function is not None else []
    if function is None or not loops:
        return None
    given = {name for loop in loops for name in targets_of(loop)}
    carried = {name.name: name for name in _carried_by(function, loops, flows) if name.name not in given}
    written = {name for loop in loops for name in written_in(function, loop)}
    live = frozenset().union(*(live_in(function, loop) for loop in loops))
    fresh = frozenset((written - live) | given)
    return LoopNames(carried, fresh - carried.keys(), loops[0].lineno)


def _carried_by(function: Function, loops: Sequence[Loop], flows: Flows) -> Iterator[CarriedName]:
    """`loops` are the outermost first."""
    lives = [live_in(function, loop) for loop in loops]
    writes = [written_in(function, loop) for loop in loops]
    for name in sorted(frozenset().union(*lives)):
        holder, _, attribute = name.partition(".")
        spot = spot_of(function, holder)
        if spot is None:
            continue
        spot, is_global = f".{attribute}" if attribute else spot, spot.split("|")[1] == MODULE and not attribute
        live = [number for number, names in enumerate(lives) if name in names]
        carrying = [number for number in live if name in writes[number]]
        outermost = loops[(carrying or live)[0]]
        made = CarriedName(
            name=name,
            function=function.name,
            file=function.file,
            line=writes[carrying[-1]][name] if carrying else outermost.lineno,
            loop_line=outermost.lineno,
            is_rebound=bool(carrying),
            is_used=flows.is_used(spot),
            is_of_process=flows.follows_from_process(spot),
            is_global=is_global,
            is_bound=bool(attribute) or name in function.parameters or name in bound_before(function, outermost),
        )
        made = replace(made, bare_line=_bare_line(function, name, since=outermost.lineno))
        yield _with_initial(made, function, before=outermost.lineno)


def _bare_line(function: Function, name: str, *, since: int) -> int:
    """The first line of the loop that assigns it and allows only a plain name as its target; 0: there is none."""
    found = [
        node.lineno
        for node in own_nodes(function.node)
        if (isinstance(node, ast.NamedExpr) and node.target.id == name)
        or (isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name == name)
    ]
    return min((line for line in found if line >= since), default=0)


def _with_initial(found: CarriedName, function: Function, *, before: int) -> CarriedName:
    """The variable with the value that the function assigns to it before the loop."""
    values = [
        (node.lineno, node.value)
        for node in own_nodes(function.node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.lineno < before and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == found.name
    ]
    if not values:
        return found
    value = max(values, key=_line)[1]
    text = ast.unparse(value)
    names = frozenset(node.id for node in ast.walk(value) if isinstance(node, ast.Name))
    is_constant = not names and len(text) <= _LONGEST and not any(isinstance(n, ast.Call) for n in ast.walk(value))
    return replace(found, initial=text, is_constant=is_constant, derives_from=names)


def _line(value: tuple[int, ast.expr]) -> int:
    return value[0]
