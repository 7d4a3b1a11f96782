"""Completes Data Docs, so that the pages need no internet.

The pages of Great Expectations load their style, their icons and the table of their index from other servers. People
also read the pages without internet, for example on a machine of a pool. Therefore the module removes the links to
other servers, and writes the style, the signs and the table into the pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segue.markup import html

_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL | re.IGNORECASE)
_LOADED = re.compile(r"<link\b[^>]*>", re.IGNORECASE)
_IMAGE = re.compile(r"<img\b[^>]*\bsrc=[\"']https?:[^>]*>", re.IGNORECASE)
_FOOTER = re.compile(r"<footer\b.*?</footer>", re.DOTALL | re.IGNORECASE)
_BUTTON = re.compile(r"<button\b.*?</button>", re.DOTALL | re.IGNORECASE)
_HANDLER = re.compile(r"\son[a-z]+=(\"[^\"]*\"|'[^']*')", re.IGNORECASE)
_STYLED = re.compile(r"@font-face\s*\{[^}]*\}|\bbackground(?:-image)?:\s*url\([^)]*\)[^;}]*;?")
_SIGN = re.compile(r"<i class=\"[^\"]*\bfa-([a-z-]+)[^\"]*\"[^>]*>\s*</i>(\s*(?:Succeeded|Failed))?")
_SIGNS = {
    "check-circle": ("met", "&#10003;", "met"),
    "times": ("failed", "&#10007;", "failed"),
    "exclamation-triangle": ("failed", "!", "error"),
}
"""Maps each icon of Great Expectations to a CSS class, a sign, and the word after the sign."""
_TABLE = re.compile(r"\$\('#([\w-]+)'\)\.bootstrapTable\(.*?\bcolumns: (\[.*?\]),\n\s*data: (\[.*?\]),\n", re.DOTALL)


def complete(folder: Path) -> None:
    """Complete every page of a site, in place."""
    for path in sorted(folder.rglob("*.html")):
        path.write_text(completed(path.read_text(encoding="utf-8")), encoding="utf-8")


def completed(page: str) -> str:
    """Return a page that contains its style, signs and tables, and loads nothing."""
    tables = {found[1]: _table(found[2], found[3]) for found in _TABLE.finditer(page)}
    for pattern in (_SCRIPT, _LOADED, _FOOTER, _BUTTON, _HANDLER, _STYLED):
        page = pattern.sub("", page)
    page = _IMAGE.sub("<strong>Great Expectations</strong>", page)
    page = _SIGN.sub(_sign, page)
    for name, table in tables.items():
        page = _put(table, page, at=rf"<table\s+id=\"{re.escape(name)}\".*?</table>")
    return page.replace("</head>", f"<style>{STYLE}</style>\n</head>", 1)


def _put(table: str, page: str, *, at: str) -> str:
    """Return the page with the table at the place that the pattern `at` matches.

    The replacement argument is a function, because a table may contain backslashes.
    """
    return re.sub(at, lambda _: table, page, flags=re.DOTALL)


def _sign(found: re.Match[str]) -> str:
    known = _SIGNS.get(found[1])
    if known is None:
        return found[2] or ""
    style, sign, word = known
    return f'<span class="{style}">{sign} {(found[2] or word).strip().lower()}</span>'


def _table(columns: str, rows: str) -> str:
    """Return the table of an index, which a script would build in the original page.

    The function escapes the cells, because they may contain HTML.
    """
    fields = [column.get("field") for column in ast.literal_eval(columns)]
    found = ast.literal_eval(rows)
    if "validation_success" not in fields:
        links = "".join(f"<li>{_link(row, row.get('expectation_suite_name'))}</li>" for row in found)
        return f"<h5>Expectation suites</h5><ul>{links}</ul>"
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{cell(row)}</td>' for cell in _COLUMNS.values())}</tr>" for row in found)
    return f'<h5>Validations</h5><table class="table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _sign_of_row(row: dict[str, Any]) -> str:
    style, sign, word = _SIGNS["check-circle" if row.get("_validation_success_text") == "Success" else "times"]
    return f'<span class="{style}">{sign} {word}</span>'


def _link(row: dict[str, Any], text: object) -> str:
    return f'<a href="{html(row.get("_table_row_link_path", "#"))}">{html(text)}</a>'


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "Status": _sign_of_row,
    "Run": lambda row: _link(row, row.get("run_time")),
    "Run name": lambda row: html(row.get("run_name", "")),
    "Data": lambda row: html(row.get("_batch_identifier_sort", "")),
    "Suite": lambda row: html(row.get("_expectation_suite_name_sort", "")),
}
"""Maps the title of each column of the index to the function that returns a cell."""


STYLE = """
:root { --ink: #1b1f24; --paper: #fff; --soft: #f3f4f6; --line: #d5d9de; --link: #1f5fa8; --met: #1a7f37;
  --failed: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --soft: #22262c; --line: #3a4048; --link: #7db4f0; --met: #4cc26b;
    --failed: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
a, .alert a { color: var(--link) !important; text-decoration: none; }
.table-responsive { width: 100%; padding: 0 .7rem; }
a:hover { text-decoration: underline; }
h4, h5, h6, p { margin: 0 0 .5rem; }
h4 { font-size: 1.3rem; } h5 { font-size: 1.1rem; } h6, .h6 { font-size: 1rem; font-weight: 600; }
nav.navbar.sticky-top { height: auto !important; padding: .7rem 1.5rem; background: var(--soft);
  border-bottom: 1px solid var(--line); }
nav .d-flex { display: flex; gap: 1rem; align-items: center; }
ol.breadcrumb { display: flex; flex-wrap: wrap; list-style: none; margin: 0; padding: 0; }
.breadcrumb-item + .breadcrumb-item::before { content: "/"; padding: 0 .5rem; }
.container-fluid.pt-4 { padding: 1.5rem; }
.row { display: flex; flex-wrap: wrap; gap: 0; }
[class*="col-"] { flex: 0 0 100%; max-width: 100%; padding: 0 .7rem; }
@media (min-width: 800px) {
  .col-md-2 { flex-basis: 18%; max-width: 18%; } .col-md-10 { flex-basis: 82%; max-width: 82%; }
  .col-6 { flex-basis: 50%; max-width: 50%; }
}
.sticky { position: sticky; top: 1rem; }
.card { border: 1px solid var(--line); border-radius: 6px; margin-bottom: 1rem; }
.sticky > .card.mb-3, .btn-group, .nav-tabs { display: none; }
.card-header { padding: .5rem .8rem; background: var(--soft); border-bottom: 1px solid var(--line); }
.card-body { padding: .6rem .8rem; }
.card ul, nav ul { list-style: none; margin: 0; padding: 0; }
.alert { padding: .7rem 1rem; margin: .6rem 0; background: var(--soft); border: 1px solid var(--line);
  border-radius: 6px; }
table { width: 100%; border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { background: var(--soft); }
thead[hidden] { display: none; }
.badge, code, pre { background: var(--soft); border-radius: 4px; padding: 0 .3rem; }
.met { color: var(--met); font-weight: 600; white-space: nowrap; }
.failed { color: var(--failed); font-weight: 600; white-space: nowrap; }
.collapse { display: none; }
.collapse:target { display: block; }
.ge-navigation-sidebar-link { display: block; padding: .15rem 0; }
"""
