"""The pages: their links lead somewhere, the commands they show exist, and they use the field's words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from benchmarks.__main__ import app as bench_app
from segue.cli.main import whole_command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BANNED = (
    "anew",
    "arena",
    "enemy",
    "fire drill",
    "keeper",
    "ladder",
    "lease",
    "mend",
    "nursery",
    "seam",
    "servant",
    "told",
)
OLD_NAME_OF_CURVE_RESUME = "`segue curve seam` is the old name of `segue curve resume`."

ALL_COMMANDS, ALL_BENCHMARKS = whole_command(), get_command(bench_app)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    return (target for target in targets if "://" not in target)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[list[str]]:
    """Every `segue ...` and benchmark in a console block or in backticks, as words, without comments."""
    text = page.read_text().replace("python -m benchmarks ", "segue bench ")
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        joined = block.replace("\\\n", " ")
        yield from (shlex.split(line[8:], comments=True) for line in joined.splitlines() if line.startswith("$ segue "))
    for inline in re.findall(r"`segue ([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield inline.split()


def resolved(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words call, and its arguments.

    Raises:
        LookupError: there is no such command.
    """
    current: Any = ALL_COMMANDS
    if words[:1] == ["bench"]:
        current, words = ALL_BENCHMARKS, words[1:]
    while hasattr(current, "commands") and words:
        name = words[0]
        if name not in current.commands and getattr(current, "default", None) and not name.startswith("-"):
            name = current.default
        elif name in current.commands:
            words = words[1:]
        if name not in current.commands:
            raise LookupError(name)
        current = current.commands[name]
    return current, words


@every_page
def test_every_relative_link_leads_to_a_file_and_to_a_heading_in_it(page):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@every_page
def test_every_command_that_is_shown_exists_with_its_options(page):
    wrong = []
    for words in commands(page):
        try:
            command, arguments = resolved(list(words))
        except LookupError:
            wrong.append(f"segue {' '.join(words)}: no such command")
            continue
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments  # The rest is a program's command.
        given = {word.partition("=")[0] for word in own if word.startswith("--")}
        wrong += [f"segue {' '.join(words)}: no option {name}" for name in sorted(given - known)]
    assert wrong == []


@every_page
def test_pages_do_not_use_the_words_that_were_replaced(page):
    text = page.read_text().replace(OLD_NAME_OF_CURVE_RESUME, "")
    found = [word for word in BANNED if re.search(rf"(?<![\w.]){word}s?\b", re.sub(r"\s+", " ", text), re.IGNORECASE)]
    assert found == []
