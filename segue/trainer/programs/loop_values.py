"""The values that a program's loops carry from one step to the next, as they are at a safe point."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from segue.continuity.carried.carried_sentences import findings_of, unread_ones
from segue.continuity.carried.flows import Flows
from segue.continuity.carried.loop_names import CarriedName, LoopNames, Running, names_in_loops
from segue.continuity.carried.namespaces import NamespaceFlows
from segue.continuity.carried.reading import flows_of
from segue.continuity.carried.source import MODULE
from segue.continuity.recipe_diff import NOT_STATE
from segue.continuity.untracked.coverage import Coverage
from segue.continuity.untracked.marks import UNREADABLE, Mark, mark_of
from segue.credentials import names_secret, redacted
from segue.records import Finding
from segue.sessions import Session
from segue.trainer.programs.carried_values import (
    ABSENT,
    COLLECTIONS,
    VALUES,
    as_data,
    is_data,
    is_of_a_package,
    is_sought,
    kind_of,
    looked_at,
    may_be_data,
    may_keep,
    namespaces_of,
    type_name,
    value_of,
)
from segue.user_objects import is_users_file
from segue.user_objects.variables import CODE

log = logging.getLogger(__name__)

_MOST_MODULES = 200


def frames_of_the_user() -> Iterator[FrameType]:
    """Yield the frames of the user's functions on the call stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_the_user(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def flows_of_program() -> Flows:
    """Analyse the flow of values through the program's own files. The program's own files are the files of running
    functions and of loaded modules."""
    running = [frame.f_code.co_filename for frame in frames_of_the_user()]
    places = tuple(f"{place}{os.sep}" for place in (Path.cwd(), *(Path(file).parent for file in running)))
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    python = (file for file in loaded if isinstance(file, str) and file.endswith(".py") and file.startswith(places))
    own = [file for file in python if _is_of_the_user(file)]
    return flows_of(dict.fromkeys([*running, *own[:_MOST_MODULES]]))


@cache
def _is_of_the_user(file: str) -> bool:
    return is_users_file(file)


class LoopValues:
    """The carried variables and their values, from the first step on. The object is used only at the safe points of a
    program."""

    def __init__(self, flows: Flows, tracked: Mapping[str, Any], *, components: Collection[str]) -> None:
        """Create the object when the first step is due. `tracked` has the program's tracked objects by name."""
        self._flows, self._tracked, self._components = flows, tracked, components
        self._namespaces = NamespaceFlows(flows)
        self._known: dict[Running, LoopNames | None] = {}
        self._reported: set[str] = set()
        self._begun = self._marks()

    def recorded(self) -> dict[str, Mark]:
        """Return the marks of the values that have changed since the first step was due. The keys are the paths of the
        values."""
        now = self._marks()
        return {path: now[path] for path in self._changed(now)}

    def look(self, trees: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Return a finding for each value that affects later steps and is in no component. Each finding is returned
        only once.

        If the loop assigns a value, for example a best loss, the value is included even before it first changes.
        """
        now, names = self._marks(), self._names()
        is_changed = self._changed(now)
        fresh = [names[path] for path in now if path in names and path not in self._reported]
        fresh = [name for name in fresh if name.counts and (name.is_rebound or name.path in is_changed)]
        code = {name.path for name, held in self._held() if isinstance(held, CODE)} - is_changed
        fresh = [name for name in fresh if name.path not in code]
        fresh = [name for name in fresh if not self._is_made_of_tracked(name)]
        if not fresh:
            return ()
        values, coverage = self._values(), Coverage()
        for component, tree in trees.items():
            if component not in NOT_STATE:
                coverage.add(component, tree)
        fresh = [name for name in fresh if not coverage.holds(name.name.rpartition(".")[2], values[name.path])]
        self._reported |= {name.path for name in fresh}
        return self._findings(fresh, before=self._begun, now=now)

    def lost(self, committed: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Return findings about values that differ from the commit. Values that affect later steps come first."""
        now, names = self._marks(), self._names()
        self._reported |= committed.keys()
        lost = [names[path] for path, mark in committed.items() if path in names and now.get(path, UNREADABLE) != mark]
        lost = [name for name in lost if not name.is_of_process]
        return self._findings(sorted(lost, key=_comes_last), before=committed, now=now)

    def covers(self, name: str, value: Any) -> bool:
        """Whether this variable holds data of a function with a loop, or gets a new value in each iteration."""
        for frame, names in self._loops():
            if frame.f_locals.get(name, ABSENT) is value:
                is_rebound = name in names.carried and names.carried[name].is_rebound
                # An empty collection may have held objects when it was committed.
                value = looked_at(value)
                holds_data = is_data(value) and not (isinstance(value, COLLECTIONS) and not value)
                return holds_data or name in names.fresh or is_rebound
        return False

    def decides(self, name: str) -> bool:
        """Whether this class reports on a variable of the script. The class reports only if the loop is at the top
        level of the script."""
        for frame, names in self._loops():
            if frame.f_code.co_name == MODULE and (name in names.fresh or name in names.carried):
                return name in names.fresh or is_data(looked_at(frame.f_globals.get(name)))
        return False

    def is_data_of_script(self, name: str) -> bool:
        """Whether a global variable of the script holds plain data."""
        frames = (frame for frame in frames_of_the_user() if frame.f_globals.get("__name__") == "__main__")
        return any(is_data(looked_at(frame.f_globals.get(name, ABSENT))) for frame in frames)

    def makes_anew(self, attribute: str) -> bool:
        """Whether each step of a loop assigns an attribute of this name before reading it."""
        return any(name.endswith(f".{attribute}") for _, names in self._loops() for name in names.fresh)

    def makes_anew_in(self, variable: str, attribute: str) -> bool:
        """Whether each step assigns this attribute of a namespace before reading it. The assignment may be in the loop
        or in a called function."""
        found = [(frame, names) for frame, names in self._loops() if variable.partition(".")[0] in frame.f_locals]
        return any(
            f"{variable}.{attribute}" in names.fresh
            or self._namespaces.makes_anew(_running(frame), variable, attribute)
            for frame, names in found
        )

    def of_packages(self) -> dict[str, Any]:
        """Return the objects of installed packages that affect later steps, for example a reinforcement-learning
        environment."""
        found: dict[str, Any] = {}
        for frame, names in self._loops():
            for name in names.carried.values():
                value = looked_at(_value_of(frame, name.name))
                if name.counts and not name.is_rebound and is_of_a_package(value) and not self._is_tracked(value):
                    found.setdefault(name.name, value)
        return found

    def unread(self) -> tuple[tuple[str, str], ...]:
        """Return a sentence and a fix for each object that affects later steps and cannot be compared."""
        marks = self._marks()
        held = {
            name.path: (name, type_name(value))
            for name, value in self._held()
            if name.counts and name.path not in marks and may_keep(value, name) and not self._is_tracked(value)
        }
        return unread_ones([name for name, _ in held.values()], types={path: kind for path, (_, kind) in held.items()})

    def _is_tracked(self, value: Any) -> bool:
        return any(value is tracked for tracked in self._tracked.values())

    def _findings(
        self, names: Sequence[CarriedName], *, before: Mapping[str, Any], now: Mapping[str, Mark]
    ) -> tuple[Finding, ...]:
        kinds: dict[str, str] = {}
        wanted = {name.path for name in names}
        for name, value in self._held():
            if name.path in wanted:
                kinds.setdefault(name.path, kind_of(value))
        loops = [names for _, names in self._loops()]
        return findings_of(
            names,
            before=before,
            now=now,
            kinds=kinds,
            lasting={name.path for name in loops[-1].carried.values() if name.loop_line == loops[-1].line}
            if loops
            else (),
            session=name_of_session(),
            taken=self._components,
        )

    def _is_made_of_tracked(self, name: CarriedName) -> bool:
        """Whether the program computes the value from restored state before the loop. The replay after a resume shows
        whether the computed value is correct."""
        frame = next((each for each in frames_of_the_user() if each.f_code.co_qualname == name.function), None)
        if frame is None or not name.derives_from:
            return False
        values = [_value_of(frame, each) for each in name.derives_from]
        is_attribute = (
            any(name.initial.startswith(f"{each}.") for each in name.derives_from) and "(" not in name.initial
        )
        held = [each for each in values if self._is_tracked(each)]
        is_restored = any(isinstance(each, Session) for each in values) or any(type(each) is dict for each in held)
        return is_restored or (is_attribute and bool(held))

    def _changed(self, now: Mapping[str, Mark]) -> set[str]:
        """Return the paths of values that have changed since the first step was due. Code objects that were made after
        the first step was due are not changes."""
        code = {name.path for name, held in self._held() if isinstance(held, CODE)}
        made = {path for path in code if not isinstance(self._begun.get(path), str)}
        return {path for path, mark in now.items() if self._begun.get(path, UNREADABLE) != mark} - made

    def _marks(self) -> dict[str, Mark]:
        found: dict[str, Mark] = {}
        for path, value in self._values().items():
            mark = mark_of(value)
            if mark != UNREADABLE and not _is_secret(path, value):
                found[path] = mark
        return found

    def _values(self) -> dict[str, Any]:
        """Return the current values of the carried variables."""
        found: dict[str, Any] = {}
        for name, held in self._held():
            value = as_data(held, name)
            if is_sought(value, name):
                continue
            if is_data(value) and (name.is_rebound or name.is_of_namespace or not isinstance(value, VALUES)):
                found.setdefault(name.path, value)
        return found

    def _held(self) -> Iterator[tuple[CarriedName, Any]]:
        """Yield each carried variable with its current value."""
        for frame, names in self._loops():
            local = frame.f_locals
            for name in names.carried.values():
                yield name, looked_at(value_of(name.name, local, frame.f_globals))
        yield from self._in_namespaces()

    def _in_namespaces(self) -> Iterator[tuple[CarriedName, Any]]:
        """If functions change data in a namespace, yield this data. The path of each value starts at a variable of the
        outermost function with a loop."""
        loops = [(frame, names, namespaces_of(frame)) for frame, names in self._loops()]
        seen = {
            (id(held), attribute)
            for _, names, found in loops
            for variable, held in found
            for attribute in list(vars(held))
            if _is_followed(f"{variable}.{attribute}", names)
        }
        for frame, names, found in reversed(loops):
            for variable, held in found:
                if variable.partition(".")[0] in names.fresh:
                    continue
                values = {name: value for name, value in dict(vars(held)).items() if may_be_data(value)}
                for name in self._namespaces.carried(_running(frame), variable, values):
                    attribute = name.name.rpartition(".")[2]
                    value = looked_at(values[attribute])
                    is_seen = isinstance(value, VALUES) or (name.is_change_known and is_data(value))
                    if is_seen and (id(held), attribute) not in seen:
                        seen.add((id(held), attribute))
                        yield name, value

    def _names(self) -> dict[str, CarriedName]:
        return {name.path: name for name, _ in self._held()}

    def _loops(self) -> Iterator[tuple[FrameType, LoopNames]]:
        """Yield the running functions that are inside a loop, the innermost first."""
        for frame in frames_of_the_user():
            running = _running(frame)
            if running not in self._known:
                self._known[running] = _names_in(running, self._flows)
            names = self._known[running]
            if names is not None:
                yield frame, names


def _is_followed(name: str, names: LoopNames) -> bool:
    """Whether the loop's own code assigns the name."""
    return name in names.fresh or (name in names.carried and names.carried[name].is_rebound)


def _names_in(running: Running, flows: Flows) -> LoopNames | None:
    try:
        return names_in_loops(running, flows)
    except Exception:  # An inspection must not end an attempt. There are no findings about this function.
        log.warning("loops not analysed function=%s file=%s", running.name, running.file, exc_info=True)
        return None


def _running(frame: FrameType) -> Running:
    code = frame.f_code
    return Running(code.co_filename, code.co_qualname, code.co_firstlineno, frame.f_lineno)


def _value_of(frame: FrameType, name: str) -> Any:
    return frame.f_locals.get(name, frame.f_globals.get(name))


def name_of_session() -> str:
    """Name of the program's variable that holds the session."""
    for frame in frames_of_the_user():
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if issubclass(type(value), Session):
                return name
    return "run"


def _is_secret(path: str, value: Any) -> bool:
    return isinstance(value, str) and (names_secret(path) or redacted(value) != value)


def _comes_last(name: CarriedName) -> bool:
    return not name.counts
