"""Sentences about state outside every component: what it is, how it changed, and the line that registers it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from segue.continuity.naming import REACHED_FROM, UNREGISTERED
from segue.continuity.recipe_diff import SURROUNDINGS
from segue.continuity.untracked.marks import Mark
from segue.continuity.untracked.place import RANDOM, Leaf
from segue.records import Finding

CHANNEL = "untracked"

_SHOWN = 3
_ABSENT = object()


def finding_of(
    leaves: Sequence[Leaf], *, before: Mapping[str, Any], now: Mapping[str, Mark], is_program: bool = False
) -> Finding:
    """The finding about the changed values of one owner, in a recipe or in a program with a loop of its own."""
    first = leaves[0]
    inner = [leaf.path.removeprefix(f"{first.owner}.") for leaf in leaves if leaf.path != first.owner]
    changes = [_change(leaf, before, now) for leaf in leaves[:_SHOWN]]
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    what = [first.kind if first.kind and inner else first.place]
    what += [] if f"{first.path}.".startswith(f"{first.root}.") else [f"{REACHED_FROM}{first.root}"]
    said = ", ".join(filter(None, what))
    sentence = f"{first.owner.replace('<locals>.', '')}{f' ({said})' if said else ''}: {'; '.join(changes)}{more}"
    return Finding(component=UNREGISTERED, channel=CHANNEL, sentence=sentence, fix=fix_of(first, is_program=is_program))


def _change(leaf: Leaf, before: Mapping[str, Any], now: Mapping[str, Mark]) -> str:
    name = leaf.path.removeprefix(f"{leaf.owner}.") if leaf.path != leaf.owner else ""
    old, new = before.get(leaf.path, _ABSENT), now.get(leaf.path, _ABSENT)
    said = changed_in_words(old, new, absent=_ABSENT)
    return f"{name} {said}" if name else said


def changed_in_words(old: Any, new: Any, *, absent: object) -> str:
    """How a value changed, by its marks; `absent` stands for one that is not there."""
    if _is_hash(old) or _is_hash(new):
        return "changed"
    old, new = (_ABSENT if mark is absent else mark for mark in (old, new))
    return f"was {_show(old)}, now {_show(new)}"


def _is_hash(mark: Any) -> bool:
    return isinstance(mark, str) and mark.startswith("#")


def _show(mark: Any) -> str:
    text = "not there" if mark is _ABSENT else repr(mark)
    return text if len(text) <= 60 else f"{text[:57]}..."


def fix_of(leaf: Leaf, *, is_program: bool) -> str:
    """The line that registers the value, or what to do where none can."""
    if leaf.root == SURROUNDINGS:
        return "a resume may find another value there: keep what training changes in registered state"
    name, inner = _name(leaf.owner), leaf.path.rpartition(".")[2]
    if leaf.is_registered and leaf.owner == leaf.root != leaf.path and leaf.root != "model":
        return f"return {inner} from state_dict() of {leaf.root} and take it back in load_state_dict()"
    if leaf.is_registered and leaf.root == "model" and leaf.owner.startswith("model") and leaf.owner != leaf.path:
        return f"make {inner} a buffer (register_buffer), or return it from get_extra_state() of its module"
    if leaf.kind in _ITERATORS:
        return f"no checkpoint can hold an iterator: compute what {name} gives from the number of the step"
    if leaf.kind == RANDOM:
        return f"register it: {_call(name, is_program)}; or seed it in each step with the number of the step"
    if leaf.owner != leaf.path or leaf.kind not in _VALUES:
        return f"register it: {_call(name, is_program)}"
    return f'keep it in a dict and register that: state = {{"{name}": ...}}, and {_call("state", is_program)}'


def _call(name: str, is_program: bool) -> str:
    return f"run.track({name}={name})" if is_program else f'extra={{"{name}": {name}}}'


_ITERATORS = frozenset(
    {"generator", "count", "cycle", "chain", "islice", "zip", "map", "enumerate", "filter", "repeat"}
)
_ITERATORS |= {"list_iterator", "tuple_iterator", "range_iterator", "dict_keyiterator", "accumulate", "product"}
_VALUES = frozenset(
    {"int", "float", "str", "bool", "bytes", "NoneType", "complex", "list", "tuple", "set", "frozenset"}
)
_VALUES |= {"deque", "Tensor", "Parameter", "ndarray", "bytearray", "array", "DataFrame", "Series", "Buffer"}


def _name(path: str) -> str:
    """The last part of a path that can be the name of a variable."""
    parts = [part for part in path.split(".") if part.isidentifier() and part not in ("self", "hook")]
    return re.sub(r"\W", "_", parts[-1].lstrip("_")) if parts else "state"
