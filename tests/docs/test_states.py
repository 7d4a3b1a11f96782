"""Every state that the flows give in the Prefect UI is on a page, with what it means and what to do."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator

import pytest
from prefect.client.schemas.objects import State

from segue.prefect.state_words import Word, state_of_attempt, state_of_run, word_of
from segue.records import Capacity, SegmentReport, StopReason
from segue.runlog.entries import Action
from tests.docs.blocks import PAGES, ROOT
from tests.support.rooms import modules

TYPES = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Scheduled")
ROOMS = ("segue.flows.", "segue.tasks.", "segue.deployments.", "segue.prefect.")
UNSEEN = {"Crashed / Deleted"}
"""What a parent notes about a flow run that was deleted; no server has such a state."""
PROSE = {"without a segment", "and the other states of a parent"}
"""What rows say besides the names of states."""
PREFECT = {"Scheduled", "Late", "Pending", "Pending / InfrastructurePending", "Running"}
"""States that Prefect itself sets."""


def shown() -> set[str]:
    """The states in the tables of the pages that say what a state means."""
    found: set[str] = set()
    for page in PAGES:
        for table in re.findall(r"^\| state \| meaning \|.*\n(?:\|.*\n)+", page.read_text(), re.MULTILINE):
            states = [row.strip("|").split(" | ")[0] for row in table.splitlines()[2:]]
            found |= {each.strip() for state in states for each in state.split(",")} - PROSE
    return found


def given() -> Iterator[str]:
    """The states that the sources of flows, tasks and deployments construct, by type and word."""
    for name, tree in modules().items():
        if not name.startswith(ROOMS):
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=kind)) if kind in TYPES:
                    yield kind
                case ast.Attribute(value=ast.Name(id="Word"), attr=word) if not name.endswith(".state_words"):
                    yield titled(Word[word])


def titled(word: Word) -> str:
    return f"{word.type.value.capitalize()} / {word}"


def title(state: State) -> str:
    word = word_of(state)
    return titled(word) if word is not None else state.type.value.capitalize()


@pytest.mark.matrix
def test_every_state_that_the_sources_construct_is_on_a_page():
    assert sorted(set(given()) - UNSEEN - shown()) == []


@pytest.mark.parametrize("action", sorted(set(typing.get_args(Action)) - {"run", "import"}))
def test_every_end_of_a_run_has_a_state_on_a_page(action):
    ends = {title(state_of_run(action, "why", late_seconds=late)) for late in (None, -5.0, 5.0)}
    assert ends <= shown()


def end_of_segment(reason: StopReason) -> str:
    facts = {"segment": 0, "attempt": 1, "attempt_id": "a", "capacity": Capacity.SPOT, "from_step": 0, "to_step": 5}
    return title(state_of_attempt(SegmentReport(stop_reason=reason, **facts)))


@pytest.mark.parametrize("reason", StopReason)
def test_every_end_of_a_segment_has_a_state_on_a_page(reason):
    assert end_of_segment(reason) in shown()


def test_no_page_has_a_state_that_is_never_given():
    ends = {
        title(state_of_run(action, "why", late_seconds=late))
        for action in typing.get_args(Action)
        for late in (None, 5.0)
    }
    ends |= {*map(end_of_segment, StopReason), titled(Word.ANOMALY)}  # A failure may have an anomaly.
    assert sorted(shown() - set(given()) - ends - PREFECT) == []


def test_every_state_of_a_segment_or_a_parent_says_what_to_do():
    page = (ROOT / "docs/operations.md").read_text()
    rows = re.findall(r"^\| state \| meaning \| what to do \|\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for table in rows for row in table.splitlines()]
    assert len(rows) >= 4
    assert [row for row in cells if len(row) != 3 or not all(row)] == []
