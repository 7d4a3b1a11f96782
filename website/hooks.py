"""A hook for mkdocs: README, CHANGELOG and CONTRIBUTING as pages; what only the repository has becomes plain text."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages that lie beside docs/, and what they are called on the site."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")
_TEST_COMMENT = re.compile(r"^<!-- test: .*? -->\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie beside docs/."""
    for source, name in PAGES.items():
        text = _IMAGE.sub(r"![\1](\2)", (ROOT / source).read_text())
        files.append(File.generated(config, name, content=as_on_the_site(text, folder="")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page without what is for tests alone; links out of docs/ become plain text."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return as_on_the_site(markdown, folder="docs")


def as_on_the_site(text: str, *, folder: str) -> str:
    """A page of the repository, which lies in this folder, as a page of the site."""

    def moved(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = _normal(PurePosixPath(folder) / target)
        page = PAGES.get(path) or path.removeprefix("docs/")
        if page != path or path in PAGES:
            # A file's name says where the page is in the repository; on the site its title does.
            shown = title_of(ROOT / path) if label.removeprefix("docs/") == target.removeprefix("docs/") else label
            return f"[{shown}]({page}{anchor})"
        return label if label.startswith("`") else f"`{path}`"

    parts = re.split(r"(^```.*?^```$)", _TEST_COMMENT.sub("", text), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


def title_of(path: Path) -> str:
    """The title of a page, without its explanation after a colon."""
    return path.read_text().partition("\n")[0].removeprefix("# ").partition(":")[0]


def _normal(path: PurePosixPath) -> str:
    kept: list[str] = []
    for part in path.parts:
        if part == ".." and kept:
            kept.pop()
        elif part != ".":
            kept.append(part)
    return "/".join(kept)
