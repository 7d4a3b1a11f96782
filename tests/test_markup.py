"""What comes from elsewhere is shown as the text that it is: it adds no row, heading, link, image or tag to a page."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest

from segue.markup import Markup, blocks, bullets, code, heading, html, inline, table
from tests.support import rooms

ROOT = Path(__file__).parents[1]
EVIL = "a | b`\n\n# Approved\n<img src=x onerror=alert(1)>[click](javascript:alert(1))"
PIECES = [
    "|",
    "\\",
    "`",
    "``",
    "<img src=x onerror=alert(1)>",
    "</td>",
    "<!--",
    "&lt;",
    "[x](javascript:y)",
    "![i](z)",
    "\n",
]
PIECES += [
    "\r\n",
    "# h",
    "* i",
    "_e_",
    "**b**",
    "~~s~~",
    "***",
    "---",
    "| a | b |",
    "1. n",
    "> q",
    " ",
    "word",
    "\x1b[31m",
    "\u202e",
]
PIECES += ["```", "    code", "[r]: http://x", "<http://x>", "\ud800", "\\|", "`|`", "`a`", "\x85", "\u2028"]


@pytest.mark.parametrize(
    "text",
    [
        "expect_column_values_to_not_be_null",
        "0.12 -> 0.3, p < 0.05, 3 > 2, -0.12 and +12.00 %",
        "run `segue checkpoints r` and set [pools] prices; 2 * 3 & more",
        "model.w [6] of run r (seg000-a1-e1): 5 of 8",
    ],
)
def test_ordinary_sentences_stay_as_they_are(text):
    assert inline(text) == text


def test_everything_that_markdown_or_html_would_read_is_escaped():
    shown = inline(EVIL)
    assert shown == "a | b\\` # Approved &lt;img src=x onerror=alert(1)>[click\\](javascript:alert(1))"
    assert inline(shown) == shown, "what is ready is not escaped again"
    assert code(EVIL) == shown
    assert html(EVIL).startswith("a | b`?")
    assert "<" not in html(EVIL)


def test_a_line_that_begins_like_a_block_is_text():
    for text in ("# h", "> q", "- i", "+ i", "* i", "1. n", "12) n", "---", "===", "***"):
        shown = inline(text)
        assert "\\" in shown[:3], text
        assert not re.match(r"(#|>|[-+*] |\d+[.)] |[-=*_]{3})", shown)


def test_any_text_is_one_cell_of_one_row():
    rolls = random.Random(11)
    for _ in range(2000):
        texts = ["".join(rolls.choices(PIECES, k=rolls.randint(1, 6))) for _ in range(2)]
        page = table(("name", "value"), [(texts[0], Markup(code(texts[1])))])
        lines = page.split("\n")
        assert len(lines) == 3, texts
        assert len(cells_of(lines[2])) == 2, texts
        assert is_inert(lines[2]), (texts, lines[2])
        shown = bullets(texts)
        assert [line[:2] for line in shown.split("\n")] == ["* ", "* "]
        assert is_inert(shown)


def cells_of(line):
    """As GitHub's markdown cuts a row: at each bar that no backslash is before, also within code."""
    return re.split(r"(?<!\\)\|", re.sub(r"\\\\", "", line.strip().removeprefix("|").removesuffix("|")))


def is_inert(text):
    """No tag, link or image, and no control character."""
    outside = re.sub(r"(?<![\\`])`[^`]*`", "", text)
    return not re.search(
        r"<[A-Za-z/!?]|(?<!\\)\]\(|[\x00-\x09\x0b-\x1f\u202e\ud800-\udfff]", outside
    ) and "](" not in text.replace("\\](", "")


def test_a_long_text_does_not_fill_the_page():
    assert len(table(("a",), [("x" * 100_000,)])) < 1_200
    assert len(inline("x" * 100_000)) < 4_100


def test_nothing_is_no_table_and_no_list():
    assert table(("a", "b"), []) == bullets([]) == blocks("", Markup("")) == ""
    assert table(("a", "b"), [(None, 0)]) == "| a | b |\n|---|---|\n| - | 0 |"
    assert blocks(heading("x\n# y"), "", "z") == "## x # y\n\nz"


BUILDS_BY_ITSELF = {
    "segue/markup.py": "the place for it",
    "segue/curves/data_docs.py": "pages of Great Expectations, by `html`; see tests/curves/test_data_docs.py",
    "segue/doctor/pools/segment_job.py": "an expression that finds commands in texts of others",
    "segue/interop/export_readme.py": "constant text with code; names are put in by `code` and `table`",
}
MARKS = re.compile(r"\|\s*:?-{3}|^\s*\|.*\||^\| | \|$|^\* $|^#{2,6} |</?(td|tr|th|li|table|h\d|p|a|img)\b")


LOOKS_LIKE_IT = re.compile(r"---|\| |</|[\"'](\*|##+) ")


def test_no_page_builds_tables_lists_or_headings_around_it():
    found = set()
    paths = [path for folder in ("segue", "tasks", "flows", "deployments") for path in (ROOT / folder).rglob("*.py")]
    for path in sorted(paths):
        text = path.read_text()
        if LOOKS_LIKE_IT.search(text) and any(MARKS.search(part) for part in texts_in(rooms.tree_of(path))):
            found.add(path.relative_to(ROOT).as_posix())
    assert found >= {"segue/markup.py"}
    assert found <= set(BUILDS_BY_ITSELF), found - set(BUILDS_BY_ITSELF)


def texts_in(tree):
    """The texts of one line in a file, and the parts of those that are formatted, without docstrings."""
    nodes = list(ast.walk(tree))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in texts if id(node) not in statements and "\n" not in node.value]


def test_every_artifact_of_prefect_is_ready_markup():
    """What is published comes from functions that return markup, or is such markup with a line break."""
    calls = []
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        for node in ast.walk(rooms.tree_of(path)):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func) == "create_markdown_artifact"
            calls += [(path.name, ast.unparse(node.args[0]))] if is_call else []
    assert len(calls) >= 5
    assert not [call for call in calls if call[1].startswith(("f'", "'", '"'))]
