"""Describes an untracked value: its path, its class, its change, and the line of code that registers it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset, Sampler

from segue.checkpoints.format.collections import is_frame
from segue.checkpoints.format.state_tree import encode_tree
from segue.continuity.iterators import is_iterator
from segue.continuity.live_tree import parts_held, tree_of
from segue.continuity.naming import REACHED_FROM, UNREGISTERED
from segue.continuity.recipe_diff import SURROUNDINGS
from segue.continuity.untracked.marks import Mark
from segue.continuity.untracked.place import MODULE_VARIABLE, Leaf, ValuePlace, fetched
from segue.data.streams import STREAMS
from segue.records import Finding
from segue.user_objects import attribute, has
from segue.user_objects.variables import CODE, is_registrable

log = logging.getLogger(__name__)

_OF_RECIPE = "recipe."
"""Prefix of expressions that start with the object that `build` returns."""


class Advice(NamedTuple):
    """The registration of a value: a component name and, if known, an expression in the user's code."""

    component: str
    expression: str
    """The expression of the object to register. The text is empty if no line of code can register the value."""
    place: str
    """Path of the object to register."""
    kind: str = ""
    """The class of the object to register.

    For registered variables, the value is the class of the object that has the variables as attributes.
    """
    imports: str = ""
    """The module that the user must import for the expression."""
    names: tuple[str, ...] = ()
    """Names of the variables to register. The tuple is empty if the object itself is registered."""

    @property
    def value(self) -> str:
        """The expression of the value to register."""
        if not self.names:
            return self.expression
        return f"segue.Variables({self.expression}, {', '.join(map(repr, self.names))})".replace("'", '"')

    def together_with(self, others: Iterable[Advice], *, taken: Collection[str]) -> Advice:
        """Return one registration for all the variables of one holder, with an unused component name."""
        names = tuple(dict.fromkeys(name for each in (self, *others) for name in each.names))
        return self._replace(names=names, component=_free_name(self, taken))

    def code(self, *, is_program: bool) -> str:
        """The line of code that registers the value."""
        before = f"import {self.imports}, and " if self.imports else ""
        if is_program:
            return f"{before}run.track({self.component}={self.value})"
        if _OF_RECIPE in self.expression:
            return f'{before}recipe.extra["{self.component}"] = {self.value}, where recipe is what build returns'
        return f'{before}extra={{"{self.component}": {self.value}}}'


BY_ADDRESS = "dict by id"
"""The type name of a dict whose keys are ids of objects. The ids differ in each process."""


class Known(NamedTuple):
    """Properties of the objects and the code around a value."""

    is_owned: Callable[[Any], bool]
    """Returns whether an object already belongs to a component."""
    is_address: Callable[[Any], bool]
    """Returns whether a key of a dict is the id of an object of a component."""
    is_assigned: Callable[[ValuePlace], bool]
    """Returns whether code assigns another object to the variable at a place.

    After such an assignment, the variable no longer has its first object.
    """
    sizes: dict[int, int | None]
    """Sizes in bytes of the values that the functions have tested so far, by id.

    The size is None if a checkpoint cannot store the value.
    """


def advice_for(leaf: Leaf, known: Known) -> Advice:
    """Return the registration of a leaf: the outermost registrable object around the value, or a variable."""
    outermost: Advice | None = None
    for place in _outermost_first(leaf):
        try:
            found = _of_place(place, leaf, known)
        except Exception as error:  # The object cannot be read; an object around it may be registered instead.
            log.debug("could not compute advice for a value path=%s error=%s", place.path, type(error).__name__)
            continue
        if found is not None and (found.expression or found.kind == BY_ADDRESS):
            return found
        outermost = outermost or found
    return outermost or Advice(_name(leaf.path), "", leaf.path, type(_value_at(leaf)).__name__)


def _outermost_first(leaf: Leaf) -> Iterator[ValuePlace]:
    chain = []
    place = leaf.at
    while place is not None:
        chain.append(place)
        place = place.outer
    yield from reversed(chain)


def _of_place(place: ValuePlace, leaf: Leaf, known: Known) -> Advice | None:
    value = place.get()
    if isinstance(value, dict) and any(map(known.is_address, [*value])):
        return Advice(_name(place.path), "", place.path, BY_ADDRESS)
    if isinstance(value, CODE) or known.is_owned(value):
        return None
    is_stateful = has(value, "state_dict", "load_state_dict")
    is_whole = is_stateful or is_registrable(value)
    if isinstance(value, Dataset) or not _can_be_stored(value, leaf, path=place.path, known=known):
        return None
    if place.what in _OF_ATTRIBUTES:  # The attribute may get another object, often a list or a tensor.
        is_stable = is_stateful or isinstance(value, STREAMS) or not _is_collection(value)
    else:
        is_item_of_other = place.what == "item" and not (place.outer and isinstance(place.outer.get(), tuple))
        is_stable = is_stateful or not is_item_of_other
    has_name = place.expression not in ("", fetched(place.holder, place.name))
    if is_whole and is_stable and has_name and not known.is_assigned(place):
        return Advice(_name(place.path), place.expression, place.path, type(value).__name__, _module_in(place))
    if place.holder and place.name:
        of = place.outer.get() if place.what == "attribute" and place.outer is not None else value
        kind = type(of).__name__
        return Advice(_name(place.path), place.holder, place.path, kind, _module_in(place), (place.name,))
    return Advice(_name(place.path), "", place.path, type(value).__name__)


_OF_ATTRIBUTES = ("attribute", "class attribute", "function attribute", "default argument")


def _module_in(place: ValuePlace) -> str:
    """Return the module at the start of an expression, if the user must import this module."""
    first = place
    while first.outer is not None:
        first = first.outer
    is_other = first.what == MODULE_VARIABLE and first.holder != "globals()"
    return first.holder if is_other else ""


def _is_collection(value: Any) -> bool:
    return isinstance(value, (dict, list, set, torch.Tensor)) or is_frame(value) or not hasattr(value, "__dict__")


def _can_be_stored(value: Any, leaf: Leaf, *, path: str, known: Known) -> bool:
    """Whether a checkpoint can and should store the whole value.

    The result is False if a part of the value is in a component, or is large and unchanged.
    """
    if id(value) not in known.sizes:
        known.sizes[id(value)] = _stored_bytes(value, path=path, is_owned=known.is_owned)
    size, changed = known.sizes[id(value)], _value_at(leaf)
    if size is None:
        return False
    is_small = size <= _MOST_BYTES + _MOST_TIMES * attribute(changed, "nbytes", 0)
    return is_small or has(value, "state_dict", "load_state_dict") or changed is value


def _stored_bytes(value: Any, *, path: str, is_owned: Callable[[Any], bool]) -> int | None:
    for number, part in enumerate(parts_held(value)):
        if number > _MOST_PARTS or (number and is_owned(part)):
            return None
        if has(part, "state_dict", "load_state_dict"):
            return 0  # Its state is not read, because this may change it: a loader would start an epoch.
    tensors: dict[str, torch.Tensor] = {}
    try:
        encode_tree(tree_of(value, path=path), path=path, tensors=tensors)
    except Exception:  # The value is not data, or cannot be read.
        return None
    return sum(tensor.nbytes for tensor in tensors.values())


_MOST_BYTES, _MOST_TIMES = 1 << 20, 8
"""Limits of the unchanged part of an object that is stored whole: in bytes, and as a multiple of the changed part.

A table of samples exceeds both limits.
"""
_MOST_PARTS = 5_000


def fix_of(leaf: Leaf, advice: Advice, *, is_program: bool, value: Any = None) -> str:
    """Describe the fix in words."""
    if leaf.root == SURROUNDINGS:
        return "a resume may find another value there: if training changes it, keep it in registered state"
    inner = leaf.path.rpartition(".")[2]
    if not advice.expression:
        return _without_code(leaf, advice, value, is_program=is_program)
    code = advice.code(is_program=is_program)
    if _is_of_sampler(leaf):
        return (
            "the order of an epoch depends on the sampler's values at its start: change them only in on_epoch, "
            f"and {code}"
        )
    if leaf.is_registered and leaf.root != "model":
        return (
            f"return {inner} from state_dict() of {leaf.root} and restore it in load_state_dict(), or register it: "
            f"{code}"
        )
    is_tensor = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    if leaf.root == "model" and is_tensor and advice.names:
        return f"make {inner} a buffer (register_buffer), or register it: {code}"
    return f"register it: {code}"


def _is_of_sampler(leaf: Leaf) -> bool:
    place = leaf.at
    while place is not None:
        if isinstance(_value_at(place), Sampler):
            return True
        place = place.outer
    return False


def _without_code(leaf: Leaf, advice: Advice, value: Any, *, is_program: bool) -> str:
    name = advice.component
    if advice.kind == BY_ADDRESS:
        if leaf.root.startswith("optimizer"):
            return f"an id differs in each process: keep the values of {name} in self.state[p] of the optimizer"
        return f"an id differs in each process: use names as the keys of {name}, and register it"
    if isinstance(value, list) and leaf.place == "item":
        return f"an object differs in each process: keep {name} in a dict with names as keys, and register this dict"
    if is_iterator(value):
        return (
            f"a checkpoint cannot store a generator: make {name} an object that has __next__ and keeps "
            "its changing values in attributes, and register this object"
        )
    line = Advice("state", "state", "").code(is_program=is_program)
    return f'keep it in a dict and register the dict: state = {{"{name}": ...}}, and {line}'


def _free_name(advice: Advice, taken: Collection[str]) -> str:
    parts = [re.sub(r"\W", "_", part) for part in advice.place.split(".")]
    longer = ("_".join(parts[-count:]) for count in range(2, len(parts) + 1))
    found = (name for name in (advice.component, *longer) if name.isidentifier() and name not in taken)
    return next(found, f"{advice.component}_{len(taken)}")


def _value_at(place: ValuePlace | Leaf) -> Any:
    try:
        return place.get()
    except Exception:  # The value no longer exists or cannot be read.
        return None


def _name(path: str) -> str:
    """Return the last part of a path that is a valid variable name."""
    left_out = ("self", "hook", "value", "__self__")
    parts = [part for part in path.split(".") if part.isidentifier() and part not in left_out]
    name = re.sub(r"\W", "_", parts[-1].strip("_")) if parts else ""
    return name or "state"


CHANNEL = "untracked"

_SHOWN = 3
_ABSENT = object()


def finding_of(
    leaves: Sequence[Leaf], advice: Advice, *, fix: str, before: Mapping[str, Any], now: Mapping[str, Mark]
) -> Finding:
    """Return the finding about all changed values with the same advice."""
    first, owner = leaves[0], owner_of(leaves[0], advice)
    changes = [_change(leaf, owner, before, now) for leaf in leaves[:_SHOWN]]
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    what = [first.place if owner == first.path else advice.kind]
    what += [] if f"{first.path}.".startswith(f"{first.root}.") else [f"{REACHED_FROM}{first.root}"]
    said = ", ".join(filter(None, what))
    sentence = f"{owner.replace('<locals>.', '')}{f' ({said})' if said else ''}: {'; '.join(changes)}{more}"
    return Finding(component=UNREGISTERED, channel=CHANNEL, sentence=sentence, fix=fix)


def owner_of(leaf: Leaf, advice: Advice) -> str:
    """Return the path that the sentence about a value names.

    This is the path of the object to register, or of the object that has the attribute to register.
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
