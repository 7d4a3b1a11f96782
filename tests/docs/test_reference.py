"""The generated reference is what the code gives now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from segue.cli.main import whole_command
from segue.policies import POLICIES
from segue.spec import RunSpec
from website import reference
from website.fields import MORE, fields_text, type_text
from website.reference import DOCS, OLD_COMMANDS, commands_page, page_with_tables

REMEDY = "the reference is not what the code gives. Fix: run `make docs` and commit the page"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_tables_of_fields_on_a_page_are_what_the_code_gives(page):
    assert page.read_text() == page_with_tables(page.read_text()), REMEDY


def test_the_page_of_the_run_spec_has_its_fields():
    assert fields_text(RunSpec) in (DOCS / "run-spec.md").read_text()


def test_the_page_of_commands_is_what_the_command_line_gives():
    assert (DOCS / "commands.md").read_text() == commands_page(), REMEDY


def commands_in(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield f"{path} {name}", inner
        yield from commands_in(inner, f"{path} {name}")


def test_every_command_has_a_section_with_each_of_its_options():
    parts = re.split(r"^##+ ", commands_page(), flags=re.MULTILINE)[1:]
    sections = {part.split("`")[1]: part for part in parts}
    commands = dict(commands_in(whole_command(), "segue"))
    assert set(sections) == set(commands) - set(OLD_COMMANDS)
    for path, section in sections.items():
        options = [name for each in commands[path].params for name in each.opts if name.startswith("--")]
        assert [name for name in options if f"`{name}" not in section and name != "--help"] == [], path


def test_types_and_ranges_are_in_words():
    fields = RunSpec.model_fields
    shown = {name: type_text(fields[name]) for name in ("steps", "deadline", "ranks", "notices", "config", "seed")}
    assert shown == {
        "steps": "integer > 0",
        "deadline": "time",
        "ranks": "integer >= 1 and <= 1,024",
        "notices": "list of aws, gce, azure",
        "config": "table",
        "seed": "integer >= 0",
    }
    policy = type_text(type(RunSpec.model_fields["policy"].default).model_fields["name"])
    assert policy == ", ".join(POLICIES)


@pytest.mark.parametrize("page", [page for pages in MORE.values() for page in pages.values()])
def test_the_pages_that_the_reference_points_to_exist(page):
    assert (DOCS / page.partition("#")[0]).is_file()


def test_writing_the_reference_changes_nothing_where_it_is_up_to_date(tmp_path, monkeypatch):
    for page in DOCS.glob("*.md"):
        (tmp_path / page.name).write_text(page.read_text())
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    assert reference.write() == []
    page = tmp_path / "run-spec.md"
    page.write_text(page.read_text().replace("Goal:", "Aim:"))
    assert reference.write() == [page]
    assert page.read_text() == (DOCS / "run-spec.md").read_text()
