"""A mutant: a text in one line of one file, and what is put in its place. No line numbers: they move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One change, and the tests that are nearest to it."""

    file: str
    old: str
    """Occurs once in the file; with the line before, where the line itself occurs more often."""
    new: str
    tests: tuple[str, ...]
    """Files or tests, as pytest takes them."""

    @property
    def name(self) -> str:
        return f"{self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def problem(self, root: Path) -> str:
        """Why it is none in this tree: its text was rewritten, or a test is gone; empty where it is one."""
        count = (root / self.file).read_text().count(self.old)
        if count != 1 or self.old == self.new:
            return f"{self.name}: its text is there {count} times. Fix: describe it again in tests/support/mutants/."
        for test in self.tests:
            file, _, name = test.partition("::")
            text = (root / file).read_text() if (root / file).is_file() else ""
            if not (root / file).exists() or (name and f"def {name.partition('[')[0]}(" not in text):
                return f"{self.name}: there is no test {test}. Fix: name its nearest test."
        return ""

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new, 1))


@dataclass(frozen=True)
class Mutants:
    """Mutants of one file with the same nearest tests."""

    file: str
    tests: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]

    def __iter__(self) -> Iterator[Mutant]:
        return (Mutant(self.file, old, new, self.tests) for old, new in self.changes)
