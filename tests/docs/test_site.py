"""The built site: no warning, no dead link, nothing from another host, every page within reach."""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.blocks import ROOT
from website.hooks import PAGES, as_on_the_site

WIDEST_README, LONGEST_README = 120, 82


class Page(HTMLParser):
    """What a page of the site refers to, and the places in it that others can refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.comments: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(found["href"])
        elif "src" in found:
            self.loads.append(found["src"])

    def handle_comment(self, data: str) -> None:
        self.comments.append(data.strip())


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    """Every page of a site built as `make docs` builds it, by its file."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    logger = logging.getLogger("mkdocs")
    level = logger.level
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True)
    try:
        build(config)  # Raises at the end where anything was warned of.
    finally:
        logger.setLevel(level)
    return {path: Page(path.read_text()) for path in out.rglob("*.html")}


@pytest.mark.matrix
def test_the_site_is_built_without_a_warning_and_has_every_page(site):
    names = {path.name for path in site}
    pages = {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")}
    assert names >= pages | {path.replace(".md", ".html") for path in PAGES.values()}


def test_every_link_of_the_site_leads_to_a_file_and_a_place_in_it(site):
    dead = []
    for path, page in site.items():
        if path.name == "404.html":  # It is served for any address, so its links begin at the root.
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_place = not parts.fragment or target not in site or unquote(parts.fragment) in site[target].places
            if not parts.scheme and not (target.is_file() and is_place):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_the_site_loads_nothing_from_another_host(site):
    loaded = {link for page in site.values() for link in page.loads if urlsplit(link).netloc}
    styles = "".join(path.read_text() for folder in {path.parent for path in site} for path in folder.rglob("*.css"))
    assert loaded == set()
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)", styles) == []


def test_links_of_the_site_lead_to_no_other_host_but_those_that_the_pages_name(site):
    own = "".join(path.read_text() for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / page for page in PAGES)])
    foreign = {link for page in site.values() for link in page.links if urlsplit(link).netloc}
    assert {link for link in foreign if link not in own} == set()


def test_what_is_for_tests_alone_is_not_on_the_site(site):
    assert [comment for page in site.values() for comment in page.comments if comment.startswith("test:")] == []


def test_a_link_to_a_page_beside_docs_and_one_to_a_source_file_are_understood():
    code = "\n```\n[e](../f)\n```\n"
    text = "[a](../CONTRIBUTING.md#rules) [`b`](../segue/run.py) [c](../segue/run.py) [d](run-spec.md)" + code
    expected = "[a](contributing.md#rules) `b` `segue/run.py` [d](run-spec.md)" + code
    assert as_on_the_site(text, folder="docs") == expected


def test_a_link_that_shows_the_name_of_a_page_shows_its_title_on_the_site():
    assert as_on_the_site("[object-stores.md](object-stores.md#endpoints)", folder="docs") == (
        "[Stores in buckets](object-stores.md#endpoints)"
    )
    assert as_on_the_site("[docs/programs.md](docs/programs.md)", folder="") == "[Programs](programs.md)"


def test_the_readme_is_one_screen():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= LONGEST_README
    assert [line for line in lines if len(line) > WIDEST_README and not line.startswith("| ")] == []
