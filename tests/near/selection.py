"""The tests nearest to a change: how far each test file is from what changed, in imports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from tests.support.rooms import HOMES

FARTHEST = 3
"""Imports from a test to what changed, at most. Beyond, nearly every test imports nearly every module."""
_FROM = re.compile(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import ([\w., ]+)", re.MULTILINE)


@dataclass(frozen=True)
class Imports:
    """The modules of the package and of its tests, and what each of them imports of the others."""

    of: Mapping[str, frozenset[str]]

    @classmethod
    def under(cls, root: Path) -> Imports:
        """Of a clone. The text is searched, not parsed, which takes a tenth of the time; a string may look like one."""
        files = [path for home in (*HOMES, "tests") for path in sorted((root / home).rglob("*.py"))]
        texts = {module_of(path.relative_to(root).as_posix()): path.read_text() for path in files}
        return cls({name: frozenset(_imported(text, texts)) for name, text in texts.items()})

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """By module: those that import it."""
        found: dict[str, set[str]] = {}
        for name, targets in self.of.items():
            for target in targets:
                found.setdefault(target, set()).add(name)
        return {name: frozenset(each) for name, each in found.items()}


def module_of(path: str) -> str:
    """The import name of a file: `flows/train.py` is `segue.flows.train`."""
    first, *rest = PurePosixPath(path).with_suffix("").parts
    return ".".join((HOMES.get(first, first), *rest)).removesuffix(".__init__")


def nearest(changed_files: Iterable[str], imports: Imports) -> list[str]:
    """The test modules that import a changed module, the nearest first; at most `FARTHEST` imports away.

    Of those equally far, a test named after what changed comes first, then the one that imports the fewest modules.
    """
    changed = {module_of(path) for path in changed_files if path.endswith(".py")} & set(imports.of)
    names = {f"test_{name.rsplit('.', 1)[-1]}" for name in changed}
    distances = _distances(changed, imports)

    def nearness(test: str) -> tuple[int, bool, int, str]:
        return distances[test], test.rsplit(".", 1)[-1] not in names, len(imports.of[test]), test

    return sorted(filter(_is_test, distances), key=nearness)


def _imported(text: str, known: Collection[str]) -> Iterator[str]:
    for module, names in _FROM.findall(text):
        for name in re.findall(r"\w+", names):
            full = f"{module}.{name}"
            yield from (each for each in (full, module) if each in known)
    for modules in _IMPORT.findall(text):
        yield from (each for each in re.findall(r"[\w.]+", modules) if each in known)


def _distances(changed: Collection[str], imports: Imports) -> dict[str, int]:
    found, edge = dict.fromkeys(changed, 0), set(changed)
    for distance in range(1, FARTHEST + 1):
        edge = {each for name in edge for each in imports.importers.get(name, ())} - set(found)
        found |= dict.fromkeys(edge, distance)
    return found


def _is_test(module: str) -> bool:
    return module.startswith("tests.") and module.rsplit(".", 1)[-1].startswith("test_")
