"""Writes sentences about untracked state: its path, its kind and its change. The module is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segue.continuity.naming import REACHED_FROM, UNREGISTERED
from segue.continuity.untracked.advice import Advice
from segue.continuity.untracked.marks import Mark
from segue.continuity.untracked.place import Leaf
from segue.records import Finding

CHANNEL = "untracked"

_SHOWN = 3
_ABSENT = object()


def finding_of(
    leaves: Sequence[Leaf], advice: Advice, *, fix: str, before: Mapping[str, Any], now: Mapping[str, Mark]
) -> Finding:
    """The finding about all changed values with the same advice."""
    first, owner = leaves[0], owner_of(leaves[0], advice)
    changes = [_change(leaf, owner, before, now) for leaf in leaves[:_SHOWN]]
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    what = [first.place if owner == first.path else advice.kind]
    what += [] if f"{first.path}.".startswith(f"{first.root}.") else [f"{REACHED_FROM}{first.root}"]
    said = ", ".join(filter(None, what))
    sentence = f"{owner.replace('<locals>.', '')}{f' ({said})' if said else ''}: {'; '.join(changes)}{more}"
    return Finding(component=UNREGISTERED, channel=CHANNEL, sentence=sentence, fix=fix)


def owner_of(leaf: Leaf, advice: Advice) -> str:
    """Return the path in the sentence about a value.

    It is the path of the object to register, or of the object with this attribute.
    """
    if not advice.names:
        return advice.place
    holder = leaf.at
    while holder is not None and holder.path != advice.place:
        holder = holder.outer
    is_attribute = holder is not None and holder.what == "attribute" and holder.outer is not None
    return holder.outer.path if is_attribute else advice.place  # type: ignore[union-attr]


def _change(leaf: Leaf, owner: str, before: Mapping[str, Any], now: Mapping[str, Mark]) -> str:
    name = leaf.path.removeprefix(f"{owner}.") if leaf.path != owner else ""
    old, new = before.get(leaf.path, _ABSENT), now.get(leaf.path, _ABSENT)
    said = changed_in_words(old, new, absent=_ABSENT)
    return f"{name} {said}" if name else said


def changed_in_words(old: Any, new: Any, *, absent: object) -> str:
    """Describe the change of a value in words, from its marks. `absent` is the mark of a missing value."""
    if _is_hash(old) or _is_hash(new):
        return "changed"
    old, new = (_ABSENT if mark is absent else mark for mark in (old, new))
    return f"was {_show(old)}, now {_show(new)}"


def _is_hash(mark: Any) -> bool:
    return isinstance(mark, str) and mark.startswith("#")


def _show(mark: Any) -> str:
    text = "not there" if mark is _ABSENT else repr(mark)
    return text if len(text) <= 60 else f"{text[:57]}..."
