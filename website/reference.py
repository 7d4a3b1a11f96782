"""The generated reference: tables of fields in pages that ask for them, and docs/commands.md from the command line.

Tables are written between `<!-- fields of module:Class: begin -->` and `<!-- fields: end -->`, the table of metrics
between `<!-- metrics: begin -->` and `<!-- metrics: end -->`, and the recorded figures of a benchmark between
`<!-- figures of checkpoint: begin -->` and `<!-- figures: end -->`.
`python -m website.reference` writes all, as `make docs` does before it builds the site. What is generated is committed,
so that it can be read in the repository, and a test compares it with the code.
"""

from __future__ import annotations

import html
import importlib
import re
from pathlib import Path
from typing import Any

from typer.cli import get_docs_for_click

from benchmarks.common.recorded import page_with_figures
from segue.metrics.families import FAMILIES
from website.fields import fields_text

DOCS = Path(__file__).parents[1] / "docs"

OLD_COMMANDS = ("segue curve seam",)
"""Old names of commands, which still work."""

_TABLES = re.compile(r"(<!-- fields of ([\w.]+):(\w+): begin -->\n).*?(<!-- fields: end -->)", re.DOTALL)
_METRICS = re.compile(r"(<!-- metrics: begin -->\n).*?(<!-- metrics: end -->)", re.DOTALL)
_COMMANDS = """# Commands

Every command of `segue`, as `--help` shows it. An expected error prints one paragraph that ends with the fix, and sets
an exit code other than 0. The commands of `python -m benchmarks` are in [benchmarks.md](benchmarks.md)."""


def page_with_tables(page: str) -> str:
    """A page with its tables of fields, metrics and figures as they are now; unchanged if it has none."""

    def written(found: re.Match[str]) -> str:
        model = getattr(importlib.import_module(found[2]), found[3])
        return f"{found[1]}\n{fields_text(model)}\n{found[4]}"

    page = page_with_figures(_TABLES.sub(written, page))
    return _METRICS.sub(lambda found: f"{found[1]}\n{metrics_text()}\n{found[2]}", page)


def metrics_text() -> str:
    """The table of all metrics."""
    rows = [
        f"| `{family.name_in_prometheus}` | {', '.join(f'`{name}`' for name in family.more_labels)} | {family.help} |"
        for family in FAMILIES
    ]
    return "\n".join(("| metric | more labels | meaning |", "| --- | --- | --- |", *rows)).replace("|  |", "| |") + "\n"


def commands_page() -> str:
    """docs/commands.md: every command with its arguments and options."""
    from segue.cli.main import whole_command

    command = whole_command()
    text = get_docs_for_click(obj=command, ctx=_context(command), name="segue")
    sections = re.split(r"\n(?=##+ `)", html.unescape(text))[1:]
    kept = (each for each in sections if each.split("`")[1] not in OLD_COMMANDS)
    return "\n\n".join((_COMMANDS, *(_without_noise(each) for each in kept))) + "\n"


def write() -> list[Path]:
    """Write what is generated; the pages whose text changed."""
    texts = {page: page_with_tables(page.read_text()) for page in sorted(DOCS.glob("*.md"))}
    texts[DOCS / "commands.md"] = commands_page()
    changed = [page for page, text in texts.items() if not page.exists() or page.read_text() != text]
    for page in changed:
        page.write_text(texts[page])
    return changed


def _context(command: Any) -> Any:
    return command.context_class(command, info_name="segue")


def _without_noise(section: str) -> str:
    """A command as typer documents it, without what every command has, and without the list of a group's commands."""
    text = re.sub(r"^\* `--help`: .*\n?", "", section, flags=re.MULTILINE)
    text = re.sub(r"\n\*\*Commands\*\*:\n.*", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\*\*Options\*\*:\s*\Z", "", text)
    text = re.sub(r"^\*\*Usage\*\*:\n\n```console\n\$ ", "```text\n", text, flags=re.MULTILINE)
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text.strip())  # An argument, as `--help` shows it.


if __name__ == "__main__":
    write()
