"""Describes values that a loop carries: the variable, its change, and the code that registers the variable."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from segue.continuity.carried.loop_names import CarriedName
from segue.continuity.carried.source import MODULE
from segue.continuity.naming import CARRIED, UNREGISTERED
from segue.continuity.untracked.advice import CHANNEL, changed_in_words
from segue.continuity.untracked.marks import Mark
from segue.records import Finding
from segue.user_objects.users_files import short_path

_ABSENT = object()
ITERATOR, OF_CODE, KEEPER = "iterator", "code", "keeper"
"""The three types of values that a checkpoint cannot store."""
_WITHOUT = {
    KEEPER: "such an object: store the content or the read position of {} in numbers, lists, dicts and tensors, or "
    "compute it from the step number",
    ITERATOR: "a generator: compute the values of {} from the step number",
    OF_CODE: "a function: choose {} by the step number or by a name",
}


def findings_of(
    names: Sequence[CarriedName],
    *,
    before: Mapping[str, Any],
    now: Mapping[str, Mark],
    kinds: Mapping[str, str],
    lasting: Collection[str],
    session: str,
    taken: Collection[str],
) -> tuple[Finding, ...]:
    """Return one finding for each given variable, in the given order.

    `before` and `now` contain the state marks of the variables by path. `kinds` contains the types of the variables'
    values. `lasting` contains the paths of the variables that the outermost loop carries. `session` is the variable
    name of the session in the program. `taken` contains the names of existing components.
    """
    found = []
    for each in names:
        of_function = [name for name in names if _belong_together(name, each)]
        old, new = before.get(each.path, _ABSENT), now.get(each.path, _ABSENT)
        change = changed_in_words(old, new, absent=_ABSENT) if old != new else "not changed yet"
        sentence = f"{each.name} ({_place(each)}): {change}; {_why(each)}"
        fix = fix_of(of_function, kinds=kinds, lasting=lasting, session=session, taken=taken)
        channel = CARRIED if each.counts else CHANNEL
        found.append(Finding(component=UNREGISTERED, channel=channel, sentence=sentence, fix=fix))
    return tuple(found)


def unread_ones(names: Sequence[CarriedName], *, types: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return a sentence and a fix for each variable whose value cannot be compared.

    `types` contains the class of each variable by path.
    """
    return tuple(
        (
            f"{each.name} ({_place(each)}), a {types[each.path]}, whose state no checkpoint holds",
            f"no checkpoint can hold {_WITHOUT[KEEPER]}".format(each.name),
        )
        for each in names
    )


def _belong_together(one: CarriedName, other: CarriedName) -> bool:
    if one.is_global and other.is_global and one.file == other.file:
        return one.counts == other.counts
    return (one.function, one.counts) == (other.function, other.counts)


def _place(name: CarriedName) -> str:
    at = f"{short_path(Path(name.file))}, line {name.line}"
    inside = "" if name.function == MODULE else f" in {name.function.rpartition('.<locals>.')[2]}"
    what = "attribute" if "." in name.name else "variable of the script" if name.is_global else "local variable"
    return f"{what}{inside}, {at}"


def _why(name: CarriedName) -> str:
    if not name.is_used:
        return "the loop carries it from one iteration to the next, apparently only to show it to people"
    return "the loop carries it from one iteration to the next, and no checkpoint holds it"


def fix_of(
    names: Sequence[CarriedName],
    *,
    kinds: Mapping[str, str],
    lasting: Collection[str],
    session: str,
    taken: Collection[str],
) -> str:
    """Return the lines of code that register the given variables of one function."""
    held = [name for name in names if kinds.get(name.path) not in _WITHOUT]
    fixes = [
        f"no checkpoint can hold {_WITHOUT[kind]}".format(name.name)
        for name in names
        if (kind := kinds.get(name.path, "")) in _WITHOUT
    ]
    in_place = [
        name for name in held if name.path in lasting and kinds.get(name.path) == "dict" and not name.is_rebound
    ]
    fixes += [f"register it: {session}.track({_last(name)}={name.name})" for name in in_place]
    held = [name for name in held if name not in in_place]
    fixes += _fixes_of_namespaces([name.name for name in held if name.is_of_namespace], session=session, taken=taken)
    held = [name for name in held if not name.is_of_namespace]
    of_module = [name for name in held if name.is_global]
    if of_module:
        fixes.append(fix_of_globals([name.name for name in of_module], session=session))
    taken = set(taken)
    for line in sorted({name.loop_line for name in held if not name.is_global}):
        of_loop = [name for name in held if not name.is_global and name.loop_line == line]
        group = _group(of_loop[0], taken)
        taken.add(group)
        given = ", ".join(f"{_last(name)}={_first_value(name)}" for name in of_loop)
        use = ", ".join(f"`{group}.{_last(name)}` for `{name.name}`" for name in of_loop)
        call = f'{group} = {session}.carry("{group}", {given})'
        first = "".join(
            f"make the assignment of {name.name} in line {name.bare_line} a statement of its own, and "
            for name in of_loop
            if name.bare_line
        )
        fixes.append(f"{first}write `{call}` right before the loop in line {line}, and from there on {use}")
    return "; ".join(fixes)


def fix_of_globals(names: Sequence[str], *, session: str) -> str:
    """Return the line of code that registers global variables of the script."""
    return f"write `{session}.track_variables(globals(), {', '.join(map(_quoted, names))})` before the training loop"


def _fixes_of_namespaces(names: Sequence[str], *, session: str, taken: Collection[str]) -> list[str]:
    attributes = [name.rpartition(".")[::2] for name in names]
    of_each = {holder: [attribute for one, attribute in attributes if one == holder] for holder, _ in attributes}
    fixes = []
    for holder, found in of_each.items():
        last = holder.rpartition(".")[2]
        known = (last, holder.replace(".", "_"), f"{last}_values")
        component = next((each for each in known if each not in taken), f"{last}_carries")
        taken = {*taken, component}
        listed = ", ".join(map(_quoted, found))
        fixes.append(f"register it: {session}.track({component}=segue.Variables({holder}, {listed}))")
    return fixes


def _quoted(name: str) -> str:
    return f'"{name}"'


def _last(name: CarriedName) -> str:
    return name.name.rpartition(".")[2]


def _first_value(name: CarriedName) -> str:
    if name.is_constant:
        return name.initial
    return name.name if name.is_bound else "None"


def _group(name: CarriedName, taken: Collection[str]) -> str:
    """Return an unused component name for the variables of a loop."""
    of = re.sub(r"\W", "_", name.function.rpartition(".")[2].strip("<>"))
    known = (f"{of}_carries", f"{of}_carries_in_{name.loop_line}", f"carried_in_{name.loop_line}")
    return next((each for each in known if each not in taken), known[-1])
