"""Finds the variables that running loops carry from one iteration to the next.

The search uses the stack frames of the loops.
"""

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
    """A running function of the user, with the line that it currently executes."""

    file: str
    name: str
    first_line: int
    line: int


@dataclass(frozen=True)
class CarriedName:
    """A variable whose value lasts from one iteration to the next."""

    name: str
    function: str
    """Qualified name of the function. The name is `<module>` for code outside of functions."""
    file: str
    line: int
    """Line of the first statement in the loop that assigns the variable.

    If the loop only changes the variable in place, the value is the line of the loop.
    """
    loop_line: int
    """Line of the outermost loop that carries the variable."""
    is_rebound: bool
    """Whether the loop assigns the variable.

    A variable that the loop does not assign is carried only if the loop changes its value in place.
    """
    is_used: bool
    """Whether the variable affects more than output for people."""
    is_of_process: bool
    """Whether the variable is computed from times, process ids or other values of the process."""
    is_bound: bool
    """Whether the variable has a value before the loop."""
    is_global: bool
    """Whether the variable belongs to the script or to a module, and not to a function."""
    initial: str = ""
    """Source text of the expression that the function assigns to the variable before the loop."""
    is_constant: bool = False
    """Whether the expression in `initial` is a constant, e.g. a number or a string."""
    derives_from: frozenset[str] = frozenset()
    """The names in the expression `initial`."""
    is_of_namespace: bool = False
    """Whether the variable is an attribute of a namespace that several functions change."""
    is_change_known: bool = True
    """Whether the analysis found a statement that changes the variable."""
    bare_line: int = 0
    """Line of an assignment whose target cannot be an attribute (`:=`, or a name in a `case`).

    The value is 0 if the function has no assignment to such a target.
    """

    @property
    def path(self) -> str:
        """The key of the variable. The key stays the same in later attempts."""
        return f"{self.function}:{self.name}"

    @property
    def counts(self) -> bool:
        return self.is_used and not self.is_of_process


@dataclass(frozen=True)
class LoopNames:
    """The variables of the running loops of one function."""

    carried: dict[str, CarriedName]
    """The carried variables by name."""
    fresh: frozenset[str]
    """Variables that each iteration assigns before reading them. Attributes have the form `variable.attribute`."""
    line: int
    """Line of the outermost loop."""


def names_in_loops(running: Running, flows: Flows) -> LoopNames | None:
    """Return the variables of the running loops of a function.

    Return None if no loop is running or the source cannot be read.
    """
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
    """Return the carried variables. The first of the `loops` is the outermost loop."""
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
    """Return the first line in the loop that assigns the variable by a statement that cannot assign attributes.

    Return 0 if no line does so.
    """
    found = [
        node.lineno
        for node in own_nodes(function.node)
        if (isinstance(node, ast.NamedExpr) and node.target.id == name)
        or (isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name == name)
    ]
    return min((line for line in found if line >= since), default=0)


def _with_initial(found: CarriedName, function: Function, *, before: int) -> CarriedName:
    """Return the variable, completed with the value that the function assigns before the loop."""
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
