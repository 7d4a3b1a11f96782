"""A program's untracked state: the objects that the program's loop and module hold."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from segue.continuity.carried.carried_sentences import fix_of_globals
from segue.continuity.carried.leaves import UseOfLeaves
from segue.continuity.code_hash import is_users
from segue.continuity.live_tree import parts_held
from segue.continuity.naming import CARRIED, PROCESS, UNREAD, UNREGISTERED
from segue.continuity.untracked.reach import Reach
from segue.credentials import redacted
from segue.data.streams import STREAMS
from segue.records import Finding
from segue.trainer.programs.carried_values import COLLECTIONS, is_data, looked_at, namespaces_of
from segue.trainer.programs.loop_values import LoopValues, flows_of_program, frames_of_the_user, name_of_session
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.outside import OutsideState, parts_of_loader
from segue.user_objects import attribute, has
from segue.user_objects.variables import CODE

log = logging.getLogger(__name__)

_HOME = "__main__"
_HOLDERS = (nn.Module, torch.optim.Optimizer, *STREAMS, dict, list, set, deque, FunctionType, MethodType, partial)

_MOST_ITEMS = 64
_CARRIED = "carried"
"""Key of the carried values in the record."""


class ProgramOutside(OutsideState):
    """Untracked state that a program's loop can reach, and the variables that the loop carries."""

    def __init__(self, tracked: Mapping[str, Any], *, loaders: Mapping[str, Any], components: Collection[str]) -> None:
        flows = flows_of_program()
        modules = [name for name, target in tracked.items() if isinstance(target, nn.Module)]
        self._loops = LoopValues(flows, tracked, components=components)
        super().__init__(
            lambda: _reached(tracked, loaders, self._loops),
            use=UseOfLeaves(flows, modules=modules, is_made_anew=self._loops.makes_anew, is_of_framework=not tracked),
            is_program=True,
        )

    def capture(self) -> Any:
        return super().capture() | {_CARRIED: self._loops.recorded()}

    def look(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        # These few values are inspected at each save, because an average may only have begun at the previous save.
        return (*self._looked(trees), *self._advised(super().look(trees)))

    def lost(self, committed: Mapping[str, Any]) -> tuple[Finding, ...]:
        return (*self._lost(committed.get(_CARRIED, {})), *self._advised(super().lost(committed)))

    def _looked(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        try:
            return self._loops.look(trees)
        except Exception:  # An inspection must not end an attempt.
            log.warning("could not look for untracked values that the loop carries", exc_info=True)
            return ()

    def _lost(self, committed: Mapping[str, Any]) -> tuple[Finding, ...]:
        try:
            return self._loops.lost(committed)
        except Exception as error:  # The attempt continues, but nothing is proven.
            log.warning("could not compare the values that the loop carries", exc_info=True)
            sentence = f"carried values could not be compared ({type(error).__name__}: {redacted(str(error))})"
            fix = "find the variable in the log of the attempt, which has the traceback, and let it hold plain data"
            return (Finding(component=UNREGISTERED, channel=CARRIED, sentence=sentence, fix=fix),)

    def of_process(self) -> tuple[Finding, ...]:
        unread = (
            Finding(component=PROCESS, channel=UNREAD, sentence=sentence, fix=fix)
            for sentence, fix in self._loops.unread()
        )
        return (*super().of_process(), *unread)

    def _advised(self, findings: tuple[Finding, ...]) -> Iterator[Finding]:
        """Yield the given findings, except those that `LoopValues` makes itself. Findings about objects of packages get
        a separate fix."""
        packages = {name: type(each).__module__.partition(".")[0] for name, each in self._loops.of_packages().items()}
        for finding in findings:
            of_script = re.match(rf"{_HOME}\.(\w+)(\S?)", finding.sentence)
            if of_script and self._loops.decides(of_script[1]):
                continue
            if of_script and of_script[2] in ("", ":") and self._loops.is_data_of_script(of_script[1]):
                fix = fix_of_globals([of_script[1]], session=name_of_session())
                yield finding.model_copy(update={"fix": fix})
                continue
            name = re.split(r"\W", finding.sentence, maxsplit=1)[0]
            yield (
                finding if name not in packages else finding.model_copy(update={"fix": _wrapped(name, packages[name])})
            )


def _wrapped(name: str, package: str) -> str:
    return (
        f"track an object of your own that gives the state of {name} in state_dict() and puts it back in "
        f"load_state_dict(): run.track({name}=...); or create {name} in each step, or from the number of the step. "
        f"{package} keeps the state in attributes, which are in no checkpoint"
    )


def of_program(tracked: Mapping[str, Any], *, loaders: Mapping[str, Any], components: Collection[str]) -> OutsideState:
    """Find untracked state that the program's loop can reach. The call must come when the first step is due.

    `loaders` has the loaders that the program has used so far, by component name. `components` has the names of all
    components.
    """
    return ProgramOutside(tracked, loaders=loaders, components=components)


def _reached(tracked: Mapping[str, Any], loaders: Mapping[str, Any], loops: LoopValues) -> Reach:
    found = Reach(_HOME, scopes=tuple(frame.f_code for frame in frames_of_the_user()))
    for name, target in tracked.items():
        found.own(name, _owned_by(target))
    held = {name: target for name, target in _held_by_the_loop().items() if not loops.covers(name, target)}
    for name, target in {**loops.of_packages(), **tracked, **held}.items():
        expression = name if held.get(name) is target else _variable_of(target)
        found.add(name, lambda target=target: target, expression=expression)  # type: ignore[misc]
    for path, expression, target in _within_variables(loops):
        found.add(path, lambda target=target: target, expression=expression)  # type: ignore[misc]
    for name, loader in loaders.items():
        variable = _variable_of(loader)
        for part, target in _parts_of(loader).items():
            path = f"{name}.{part}"
            root = path if part in _CALLED and not has(target, "state_dict", "load_state_dict") else name
            expression = f"{variable}.{part}" if variable else ""
            found.add(root, lambda target=target: target, path=path, expression=expression)  # type: ignore[misc]
    return found


def _variable_of(target: Any) -> str:
    """Name of the variable or attribute by which the code around the loop refers to the object; empty if there is no
    such name."""
    for frame in frames_of_the_user():
        held = {**frame.f_globals, **frame.f_locals}
        if found := next((name for name, value in held.items() if value is target), ""):
            return found
        for name, value in held.items():
            attributes = {} if isinstance(value, ModuleType) else attribute(value, "__dict__", {})
            pairs = attributes.items() if isinstance(attributes, dict) else ()
            if found := next((each for each, inner in pairs if inner is target), ""):
                return f"{name}.{found}"
    return ""


def _owned_by(target: Any) -> Iterable[Any]:
    if isinstance(target, nn.Module):
        return bare(target).modules()
    return [target] if has(target, "state_dict", "load_state_dict") else parts_held(target)


_CALLED = ("dataset", "collate_fn", "worker_init_fn")
"""Parts of a loader whose state is in no component. The loader's component holds the rest of the state, including the
counters of the loader and its samplers."""


def _parts_of(loader: Any) -> dict[str, Any]:
    is_plain = isinstance(loader, DataLoader) and not has(loader, "state_dict", "load_state_dict")
    return parts_of_loader(loader) if is_plain else {"loader": loader}


def _held_by_the_loop() -> dict[str, Any]:
    """Objects that are variables of the function with the loop, or of its module.

    Plain values and tensors are left out, because a loop changes them in each step.
    """
    held: dict[str, Any] = {}
    for frame in frames_of_the_user():
        held = {**frame.f_globals, **frame.f_locals, **held}
    return {name: value for name, value in held.items() if not name.startswith("__") and _is_holder(value)}


def _within_variables(loops: LoopValues) -> Iterator[tuple[str, str, Any]]:
    """Yield the objects in those of the loop's variables that are namespaces or tuples, each with a path and an
    expression."""
    for frame in frames_of_the_user():
        for variable, held in namespaces_of(frame):
            for name, value in dict(vars(held)).items():
                if _is_object(value) and not loops.makes_anew_in(variable, name):
                    yield f"{variable}.{name}", f"{variable}.{name}", value
        for variable, held in dict(frame.f_locals).items():
            # Not `isinstance`, which may call code of a user's class.
            if not issubclass(type(held), tuple) or loops.covers(variable, held):
                continue
            fields = dict(enumerate(getattr(type(held), "_fields", ())))
            for number, value in enumerate(tuple(held)[:_MOST_ITEMS]):
                if _is_object(value):
                    within = f".{fields[number]}" if number in fields else f"[{number}]"
                    yield f"{variable}.{fields.get(number, number)}", f"{variable}{within}", value


def _is_object(value: Any) -> bool:
    """Whether the value is, or contains, an object that is not only data."""
    kind = type(value)  # Not `isinstance`, which may call code of a user's class.
    if issubclass(kind, COLLECTIONS):
        return not is_data(looked_at(value))
    return _is_holder(value) and not issubclass(kind, CODE)


def _is_holder(value: Any) -> bool:
    """Whether the value can hold state. The result is False for objects of installed packages, for example a progress
    bar."""
    kind = type(value)
    is_stateful = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return issubclass(kind, _HOLDERS) or is_stateful or is_users(kind, home=_HOME)
