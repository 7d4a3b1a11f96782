"""How flow runs end: a state that Prefect's UI shows by default, and segue's word in its message."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import prefect
import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Running, Scheduled

from segue.prefect.state_words import Word, has_reached_goal, in_words, is_by_a_person, state_with, word_of
from tests.support.rooms import modules

BUNDLE = Path(prefect.__file__).parent / "server" / "ui_build" / "assets"
ROOMS = ("segue.flows.", "segue.tasks.", "segue.deployments.")
MAKERS = ("State", "Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Scheduled", "Running", "Pending")


def shown_by_prefect() -> set[str]:
    """The names of states by which the deployment pages of the installed Prefect filter."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(BUNDLE.glob("index-*.js")))
    found = next(filter(None, (re.search(r"\[([`\"']Scheduled[`\"'],[^\]]*AwaitingRetry[^\]]*)\]", t) for t in texts)))
    return set(re.findall(r"\w+", found[1]))


@pytest.mark.parametrize("word", Word)
def test_the_pages_of_a_deployment_show_a_state_with_each_word(word):
    state = state_with(word, "step 508 is committed")
    assert state.name in shown_by_prefect()
    assert state.message == f"{word}: step 508 is committed"
    assert word_of(state) is word


def test_no_flow_or_task_gives_a_state_a_name_of_its_own():
    named = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if module.startswith(ROOMS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS
        if any(given.arg == "name" for given in node.keywords)
    ]
    assert named == []


@pytest.mark.parametrize(
    ("name", "word"), [("NoCapacity", Word.NO_CAPACITY), ("Lost", Word.LOST), ("CompletedLate", Word.LATE)]
)
def test_states_of_an_older_segue_are_understood(name, word):
    kind = StateType.COMPLETED if name == "CompletedLate" else word.type
    assert word_of(State(type=kind, name=name, message="no machine within 60 s")) is word


@pytest.mark.parametrize(
    "state",
    [
        Scheduled(),
        State(type=StateType.SCHEDULED, name="Late"),
        Running(),
        Completed(message="Lost: and found"),
        Failed(message="ValueError: Late: 1"),
        Failed(message="Latecomers: 3"),
        Crashed(message=None),
    ],
)
def test_a_state_of_prefect_or_of_the_user_has_no_word(state):
    assert word_of(state) is None
    assert in_words(state) == state.name


@pytest.mark.parametrize(
    ("state", "is_one"),
    [
        (Cancelled(message="cancelled by ann"), True),
        (Cancelling(), True),
        (state_with(Word.NO_CAPACITY, "none within 60 s"), False),
        (state_with(Word.DUPLICATE, "another parent runs it"), False),
        (State(type=StateType.CANCELLED, name="Duplicate"), False),
        (Cancelled(message="Deployment concurrency limit reached."), False),
        (Failed(message="cancelled"), False),
    ],
)
def test_a_cancellation_by_segue_is_none_by_a_person(state, is_one):
    assert is_by_a_person(state) is is_one


@pytest.mark.parametrize(
    ("state", "has"),
    [
        (Completed(), True),
        (state_with(Word.LATE, "4 min after the deadline"), True),
        (State(type=StateType.COMPLETED, name="CompletedLate"), True),
        (state_with(Word.HOPELESS, "no commit"), False),
        (Failed(message="ValueError"), False),
    ],
)
def test_a_late_run_has_reached_its_goal_and_is_not_green(state, has):
    assert has_reached_goal(state) is has
    assert state_with(Word.LATE, "").type is StateType.FAILED
