"""Watches what training changes outside every component, from the build of a recipe on."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Protocol

from segue.continuity.naming import CARRIED
from segue.continuity.object_walk import is_telling
from segue.continuity.recipe_diff import NOT_STATE
from segue.continuity.untracked.coverage import Coverage
from segue.continuity.untracked.marks import UNREADABLE, Mark, mark_of
from segue.continuity.untracked.place import GONE, Leaf
from segue.continuity.untracked.reach import Reach
from segue.continuity.untracked.sentences import finding_of
from segue.credentials import names_secret, redacted
from segue.records import Finding

log = logging.getLogger(__name__)

Walk = Callable[[], Reach]


class Use(Protocol):
    """Knows what becomes of values."""

    def is_carried(self, leaf: Leaf) -> bool:
        """Whether a later value follows from it, and decides more than what people are shown."""
        ...

    def is_shown(self, leaf: Leaf) -> bool:
        """Whether the code only shows it to people."""
        ...


_MOST_KEPT, _MOST_SHOWN = 500, 4
_YEAR_2001, _DECIMALS_OF_SETTINGS = 1e9, 5


class Watch:
    """The marks of everything that a recipe reaches: as built, and at each save."""

    def __init__(self, walk: Walk, *, use: Use, is_program: bool = False) -> None:
        """`walk` follows the objects of the training code; it is called now, and again at some of the saves."""
        self._walk, self._use, self._is_program = walk, use, is_program
        self._leaves: dict[str, Leaf] = {}
        self._built: dict[str, Mark] = {}
        self._changed: dict[str, Leaf] = {}
        """What training has changed and no component holds."""
        self._reported: set[str] = set()
        self._walk_again()
        self._built = {path: mark for path, (_, mark) in self._read(self._leaves.values()).items()}

    def known_before(self, paths: Iterable[str]) -> None:
        """An earlier attempt has reported the values at these paths."""
        self._reported |= {self._leaves[path].owner if path in self._leaves else path for path in paths}

    def look(self, trees: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Findings about values that were changed and are in none of these captured components, each value once."""
        self._walk_again()
        coverage = Coverage(self._leaves.values())
        for name, tree in trees.items():
            if name not in NOT_STATE:
                coverage.add(name, tree)
        found = self._read(self._leaves.values(), is_known=coverage.has_memory_of)
        self._changed = {
            path: self._leaves[path]
            for path, (value, mark) in found.items()
            if self._built.get(path, UNREADABLE) != mark and not coverage.has(self._leaves[path], value)
        }
        fresh = {path: leaf for path, leaf in self._changed.items() if leaf.owner not in self._reported}
        fresh = {path: leaf for path, leaf in fresh.items() if not (self._is_program and self._use.is_shown(leaf))}
        self._reported |= {leaf.owner for leaf in fresh.values()}
        groups: dict[str, list[Leaf]] = {}
        for leaf in fresh.values():
            groups.setdefault(leaf.owner, []).append(leaf)
        return tuple(
            self._finding(leaves, self._built, {leaf.path: found[leaf.path][1] for leaf in leaves})
            for leaves in groups.values()
        )

    def changed(self) -> dict[str, Mark]:
        """The marks of what training has changed and no component holds, by path."""
        return {path: mark for path, (_, mark) in self._read(list(self._changed.values())[:_MOST_KEPT]).items()}

    def marks_of(self, paths: Iterable[str]) -> dict[str, Mark]:
        """The marks that these values have now; those that are not there are left out."""
        leaves = [self._leaves[path] for path in paths if path in self._leaves]
        return {path: mark for path, (_, mark) in self._read(leaves).items()}

    def of_process(self, roots: tuple[str, ...]) -> list[str]:
        """What these fields of the recipe lead to and each process has its own of: times, randomness of the system."""
        found: list[str] = []
        for leaf in self._leaves.values():
            if leaf.root in roots and len(found) < _MOST_SHOWN:
                with suppress(*GONE):
                    value = leaf.get()
                    is_time = isinstance(value, float) and _is_read_from_clock(leaf.path, value)
                    if is_time or isinstance(value, (random.SystemRandom, date)):
                        found.append(f"{leaf.path} ({'time' if is_time else type(value).__name__})")
        return found

    def findings_of(self, paths: Iterable[str], *, before: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Findings about values that are not as they were; `before` are their marks at the commit."""
        now = self.marks_of(paths)
        groups: dict[str, list[Leaf]] = {}
        for path in paths:
            leaf = self._leaves.get(path) or Leaf(path, "", path.partition(".")[0], path, "", lambda: None)
            groups.setdefault(leaf.owner, []).append(leaf)
        return tuple(self._finding(leaves, before, now) for leaves in groups.values())

    def _finding(self, leaves: Sequence[Leaf], before: Mapping[str, Any], now: Mapping[str, Mark]) -> Finding:
        leaves = sorted(leaves, key=lambda leaf: not self._use.is_carried(leaf))
        found = finding_of(leaves, before=before, now=now, is_program=self._is_program)
        return found.model_copy(update={"channel": CARRIED}) if self._use.is_carried(leaves[0]) else found

    def _walk_again(self) -> None:
        found = self._walk()
        self._leaves = found.leaves
        found.release()

    def _read(
        self, leaves: Iterable[Leaf], *, is_known: Callable[[Any], bool] = lambda _: False
    ) -> dict[str, tuple[Any, Mark]]:
        """The values and their marks, without those that are known to be in a component."""
        found: dict[str, tuple[Any, Mark]] = {}
        for leaf in leaves:
            try:
                value = leaf.get()
                if is_known(value):
                    continue
                mark = mark_of(value)
            except GONE:
                continue
            except RuntimeError:
                log.debug("value not read because another thread changes it path=%s", leaf.path)
                continue
            if mark != UNREADABLE and _counts(leaf.path, value, mark):
                found[leaf.path] = (value, mark)
        return found


def _is_read_from_clock(path: str, value: float) -> bool:
    """Whether a number is called a time, and has the digits of a clock: a setting in seconds has few decimals."""
    return not is_telling(path, value) and (abs(value) >= _YEAR_2001 or value != round(value, _DECIMALS_OF_SETTINGS))


def _counts(path: str, value: Any, mark: Mark) -> bool:
    """Whether a change of it says anything: not of times, addresses and generated names.

    Credentials are left out: values stand in the log and in messages as they are.
    """
    if isinstance(value, str) and (names_secret(path) or redacted(value) != value):
        return False
    if isinstance(value, (bool, int)) or not isinstance(value, (float, str)) or str(value).startswith("#"):
        return True
    return is_telling(path, mark)
