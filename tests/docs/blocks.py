"""The code blocks of the pages, and what their test comments say about how they are run.

A comment directly above a block applies to it:

    <!-- test: setup=NAME -->        names of tests/docs/setups.py, or what it puts into the folder, are there
    <!-- test: as=module:Class -->   a toml block that is no run spec, and the class that reads it
    <!-- test: run -->               the commands of a console block are run, in `make matrix`
    <!-- test: not run: REASON -->   a python block that cannot run here; it only has to compile

The blocks of a page share a folder and, in python, one namespace. A python block that begins with `# name.py` is
also written to that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<comment>.*?) -->\n)?(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/]+\.\w+)$")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    """Line of its first line of code, counted from 1."""
    language: str
    text: str
    comment: str
    """What its test comment says; empty where it has none."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def setup(self) -> str | None:
        return self._value("setup=")

    @property
    def read_as(self) -> str | None:
        return self._value("as=")

    @property
    def why_not_run(self) -> str | None:
        return self._value("not run: ")

    @property
    def is_run(self) -> bool:
        """Whether the commands of a console block are run."""
        return self.comment == "run"

    @property
    def file(self) -> str | None:
        """The file that the block is, by its first line."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found is not None else None

    @property
    def commands(self) -> list[str]:
        """The commands of a console block."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line[2:] for line in lines if line.startswith("$ ")]

    def _value(self, key: str) -> str | None:
        return self.comment.removeprefix(key) if self.comment.startswith(key) else None


def blocks(*pages: Path, language: str | None = None) -> Iterator[Block]:
    """The blocks of these pages, or of all, in order."""
    for page in pages or PAGES:
        text = page.read_text()
        for found in _BLOCK.finditer(text):
            if language in (None, found["language"]):
                line = text.count("\n", 0, found.start("text")) + 1
                code = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
                yield Block(page, line, found["language"], code, found["comment"] or "")
