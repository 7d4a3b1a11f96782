"""Finds values that training changes and that are outside all components. The watch begins when `build` returns."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Protocol

from segue.continuity.naming import CARRIED
from segue.continuity.object_walk import is_telling
from segue.continuity.recipe_diff import NOT_STATE
from segue.continuity.untracked.advice import Advice, Known, advice_for, finding_of, fix_of
from segue.continuity.untracked.coverage import Coverage
from segue.continuity.untracked.marks import UNREADABLE, Mark, mark_of
from segue.continuity.untracked.place import MODULE_VARIABLE, Leaf, ValuePlace
from segue.continuity.untracked.reach import Reach
from segue.credentials import names_secret, redacted
from segue.records import Finding

log = logging.getLogger(__name__)

Walk = Callable[[], Reach]


class Use(Protocol):
    """Interface to find how the training code uses a value."""

    def is_carried(self, leaf: Leaf) -> bool:
        """Whether the next value follows from the current value, and the value affects more than output for people."""
        ...

    def is_shown(self, leaf: Leaf) -> bool:
        """Whether the code only shows the value to people."""
        ...


_MOST_KEPT, _MOST_SHOWN = 500, 4
_YEAR_2001, _DECIMALS_OF_SETTINGS = 1e9, 5


_OF_SESSIONS = ("progress", "epoch", "folder", "gradients", "modes", "buffers", "batches")
"""Names that a program cannot use for tracked objects."""


class Watch:
    """Computes the marks of all values that a recipe reaches, after `build` and at each save."""

    def __init__(self, walk: Walk, *, use: Use, is_program: bool = False) -> None:
        """`walk` follows the objects of the training code. The constructor calls `walk`, and some saves call it
        again."""
        self._walk, self._use, self._is_program = walk, use, is_program
        self._reach: Reach | None = None
        self._leaves: dict[str, Leaf] = {}
        self._built: dict[str, Mark] = {}
        self._changed: dict[str, Leaf] = {}
        """The paths of the values that training has changed and that are in no component."""
        self._reported: set[str] = set()
        self._walk_again()
        self._built = {path: mark for path, (_, mark) in self._read(self._leaves.values()).items()}

    def known_before(self, paths: Iterable[str]) -> None:
        """Record that an earlier attempt has already reported the values at these paths."""
        self._reported |= set(paths)

    def look(self, trees: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Return findings about changed values that are in none of the captured components `trees`.

        The method reports each value only once.
        """
        self._walk_again()
        coverage = _coverage(self._leaves.values(), trees)
        found = self._read(self._leaves.values(), is_known=coverage.has_memory_of)
        self._changed = {
            path: self._leaves[path]
            for path, (value, mark) in found.items()
            if self._built.get(path, UNREADABLE) != mark and not coverage.has(self._leaves[path], value)
        }
        marks = {path: mark for path, (_, mark) in found.items()}
        decisive = [leaf for leaf in self._changed.values() if not (self._is_program and self._use.is_shown(leaf))]
        return self._findings(decisive, self._built, marks, are_known_left_out=True)

    def changed(self) -> dict[str, Mark]:
        """Return the marks of the values that training has changed and that are in no component, by path."""
        return {path: mark for path, (_, mark) in self._read(list(self._changed.values())[:_MOST_KEPT]).items()}

    def marks_of(self, paths: Iterable[str]) -> dict[str, Mark]:
        """Return the current marks of the values at these paths, without missing values."""
        leaves = [self._leaves[path] for path in paths if path in self._leaves]
        return {path: mark for path, (_, mark) in self._read(leaves).items()}

    def changed_and_unknown(self, trees: Mapping[str, Any], *, beneath: str, known: Collection[str]) -> dict[str, str]:
        """Describe, by path, the values that have changed since `build` and that are in none of the captured `trees`.

        The result contains only values below the path `beneath`, without the values at the `known` paths.
        """
        leaves = [leaf for path, leaf in self._leaves.items() if path.startswith(f"{beneath}.")]
        coverage = _coverage(leaves, trees)
        found = self._read(leaves, is_known=coverage.has_memory_of)
        return {
            path: f"was {self._built[path]!r} as built, now {mark!r}"
            for path, (value, mark) in found.items()
            if path in self._built and self._built[path] != mark and path not in known
            if _is_plain(mark) and not coverage.has(self._leaves[path], value)
        }

    def of_process(self, roots: tuple[str, ...]) -> list[str]:
        """Describe the values in the recipe fields `roots` that are different in each process.

        Values that differ in each process are times and results of system randomness.
        """
        found: list[str] = []
        for leaf in self._leaves.values():
            if leaf.root in roots and len(found) < _MOST_SHOWN:
                with suppress(Exception):
                    value = leaf.get()
                    is_time = isinstance(value, float) and _is_read_from_clock(leaf.path, value)
                    if is_time or isinstance(value, (random.SystemRandom, date)):
                        found.append(f"{leaf.path} ({'time' if is_time else type(value).__name__})")
        return found

    def findings_of(self, paths: Iterable[str], *, before: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Return findings about values that have changed. `before` contains the marks of the values at the commit."""
        leaves = [*(self._leaves[path] for path in paths if path in self._leaves)]
        leaves += [self._missing(path) for path in paths if path not in self._leaves]
        return self._findings(leaves, before, self.marks_of(paths), are_known_left_out=False)

    def _missing(self, path: str) -> Leaf:
        """Return a leaf for a value that the walk in this process did not find.

        If the collection that contained the value exists, the collection is the leaf's holder.
        """
        around = path
        while around := around.rpartition(".")[0]:
            if (held := self._leaves.get(around)) is not None:
                return held._replace(path=path, place="")
        return Leaf(path, "", path.partition(".")[0], lambda: None)

    def _findings(
        self, leaves: Sequence[Leaf], before: Mapping[str, Any], now: Mapping[str, Mark], *, are_known_left_out: bool
    ) -> tuple[Finding, ...]:
        """Return one finding for each object or holder that the user has to register."""
        assert self._reach is not None
        known = Known(self._reach.is_owned, self._reach.is_address, self._is_assigned, {})
        groups: dict[tuple[str, ...], list[tuple[Leaf, Advice]]] = {}
        for leaf in leaves:
            if are_known_left_out and leaf.path in self._reported:
                continue
            advice = advice_for(leaf, known)
            key = self._key(leaf, advice)
            if not are_known_left_out or key not in self._reported:
                group = (advice.expression, "" if advice.names else key)
                groups.setdefault(group, []).append((leaf, advice))
        found, taken = [], set(self._names_taken())
        for members in groups.values():
            members.sort(key=lambda member: not self._use.is_carried(member[0]))
            leaves, advices = [leaf for leaf, _ in members], [advice for _, advice in members]
            self._reported |= {self._key(*each) for each in members}
            together = advices[0].together_with(advices[1:], taken=taken)
            taken.add(together.component)
            fix = fix_of(leaves[0], together, is_program=self._is_program, value=_value_of(leaves[0]))
            made = finding_of(leaves, together, fix=fix, before=before, now=now)
            is_carried = self._use.is_carried(leaves[0])
            found.append(made.model_copy(update={"channel": CARRIED}) if is_carried else made)
        return tuple(found)

    def _is_assigned(self, place: ValuePlace) -> bool:
        """Whether code may have assigned another object to a variable since `build`.

        The method decides by the code and the marks.
        """
        assert self._reach is not None
        is_by_code = place.what in ("closure variable", MODULE_VARIABLE) and place.name in self._reach.rebound
        return is_by_code or self._built.get(place.path, UNREADABLE) is None

    def _names_taken(self) -> Iterator[str]:
        assert self._reach is not None
        yield from (name.removeprefix("extra.") for name in self._reach.registered)
        if self._is_program:
            yield from _OF_SESSIONS

    @staticmethod
    def _key(leaf: Leaf, advice: Advice) -> str:
        """Return the key by which `_findings` groups values.

        The key identifies an object to register whole, or a single variable.
        """
        return leaf.path if advice.names else advice.place

    def _walk_again(self) -> None:
        found = self._walk()
        self._reach, self._leaves = found, found.leaves
        found.release()

    def _read(
        self, leaves: Iterable[Leaf], *, is_known: Callable[[Any], bool] = lambda _: False
    ) -> dict[str, tuple[Any, Mark]]:
        """Return the values and their marks. Values that are known to be in a component are not included."""
        found: dict[str, tuple[Any, Mark]] = {}
        for leaf in leaves:
            try:
                value = leaf.get()
                if is_known(value):
                    continue
                mark = mark_of(value)
            except Exception as error:  # The value no longer exists, is changed by another thread, or cannot be read.
                log.debug("skipped a value that cannot be read path=%s error=%s", leaf.path, type(error).__name__)
                continue
            if mark != UNREADABLE and _counts(leaf.path, value, mark):
                found[leaf.path] = (value, mark)
        return found


def _coverage(leaves: Iterable[Leaf], trees: Mapping[str, Any]) -> Coverage:
    coverage = Coverage(leaves)
    for name, tree in trees.items():
        if name not in NOT_STATE:
            coverage.add(name, tree)
    return coverage


def _is_plain(mark: Mark) -> bool:
    return not isinstance(mark, str) or not mark.startswith("#")


def _value_of(leaf: Leaf) -> Any:
    try:
        return leaf.get()
    except Exception:  # The value no longer exists or cannot be read.
        return None


def _is_read_from_clock(path: str, value: float) -> bool:
    """Whether a number is a clock time, judged by its name and its many decimals. Settings have few decimals."""
    return not is_telling(path, value) and (abs(value) >= _YEAR_2001 or value != round(value, _DECIMALS_OF_SETTINGS))


def _counts(path: str, value: Any, mark: Mark) -> bool:
    """Whether a change of the value matters. The result is False for times, addresses and generated names.

    The result is also False for credentials, because changed values appear in the log and in messages.
    """
    if isinstance(value, str) and (names_secret(path) or redacted(value) != value):
        return False
    if isinstance(value, (bool, int)) or not isinstance(value, (float, str)) or str(value).startswith("#"):
        return True
    return is_telling(path, mark)
