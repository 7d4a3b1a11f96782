"""Writes the markdown and HTML of pages, and escapes every text from data, specs, files or users' code.

Prefect's UI, GitHub and browsers show these pages. Without escaping, the name of a column, a file or an exception could
break out of its table, or add a heading, a link or an image. A `Markup` is text that is already escaped. Tables and
lists escape every other text.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 4_000
_MOST_OF_A_CELL = 1_000
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""This pattern finds control characters of terminals and of the writing direction, and unpaired surrogates."""
_SPAN = re.compile(r"(?<!`)`(?!`)([^`<>|]+)`(?!`)")
"""This pattern finds code between two backticks, as in segue's own messages."""
_SPECIAL = re.compile(
    r"""
    (?P<backslash>\\(?=[!-/:-@\[-`{-~]|$)) | (?P<entity>&(?=\#?\w+;)) | (?P<tag><(?=[A-Za-z/!?]))
    | (?P<plain>` | \](?=[(\[:]) | (?<=!)\[ | ~(?=\S) | (?<=\S)~ | \*(?=\S) | (?<=\S)\*
      | (?<![^\W_])_ | _(?![^\W]))
    """,
    re.VERBOSE,
)
_BAR = re.compile(r"(?<!\\)((?:\\\\)*)\|")
"""This pattern finds an unescaped bar, which would begin another cell."""
_BLOCK = re.compile(r"(#{1,6}(?:\s|$)|>|[-+*](?:\s|$)|[-=_*]{2,}\s*$|\d+(?=[.)](?:\s|$)))")
"""This pattern finds the beginning of a heading, a quotation, a list or a rule."""


class Markup(str):
    """Markdown in which every text from outside segue is escaped."""

    __slots__ = ()


def inline(text: object) -> Markup:
    """Return a text as one line that markdown shows unchanged.

    Code in single backticks stays code. A `Markup` is returned unchanged.
    """
    if isinstance(text, Markup):
        return text
    shown = _line(text, most_characters=_MOST_CHARACTERS)
    block = _BLOCK.match(shown)
    if block is None:
        return Markup(shown)
    is_number = block[1].isdigit()
    return Markup(f"{block[1]}\\{shown[block.end() :]}" if is_number else f"\\{shown}")


def _line(text: object, *, most_characters: int) -> str:
    """Return the text as one escaped line, which is used inside another line. No heading or list can begin there."""
    line = _ODD.sub("?", " ".join(str(text).split()))
    if len(line) > most_characters:
        line = f"{line[:most_characters]} ..."
    found, end = [], 0
    for span in _SPAN.finditer(line):
        if "](" not in span[1]:
            found += [_escaped(line[end : span.start()]), span[0]]
            end = span.end()
    return "".join([*found, _escaped(line[end:])])


def code(text: object) -> Markup:
    """Return a name as code.

    If inline code cannot contain the name's characters, return the name as plain text.
    """
    plain = str(text)
    is_code = _SPAN.fullmatch(f"`{plain}`") and plain.isprintable() and "](" not in plain
    return Markup(f"`{plain}`") if is_code else inline(plain)


def bold(text: object) -> Markup:
    return Markup(f"**{inline(text)}**")


def heading(text: object, *, level: int = 2) -> Markup:
    return Markup(f"{'#' * level} {inline(text)}")


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """Return a table with every cell escaped, and a dash for None. If there are no rows, the text is empty."""
    body = [_row(row) for row in rows]
    return Markup("\n".join([_row(columns), "|" + "---|" * len(columns), *body]) if body else "")


def bullets(items: Iterable[object]) -> Markup:
    """Return a list with one line for each item. If there are no items, the text is empty."""
    return Markup("\n".join(f"* {inline(item)}" for item in items))


def blocks(*parts: object) -> Markup:
    """Return a page of paragraphs, headings, tables and lists, without the empty parts."""
    return Markup("\n\n".join(shown for part in parts if (shown := inline(part))))


def html(text: object) -> str:
    """Return a text that HTML shows unchanged, even in an attribute."""
    return _html.escape(_ODD.sub("?", str(text)))


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: object) -> str:
    if cell is None:
        return "-"
    shown = cell if isinstance(cell, Markup) else _line(cell, most_characters=_MOST_OF_A_CELL)
    return _BAR.sub(r"\1\|", shown)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(_as_text, text)


def _as_text(found: re.Match[str]) -> str:
    kind = found.lastgroup
    return {"tag": "&lt;", "entity": "&amp;"}.get(kind or "", f"\\{found[0]}")
