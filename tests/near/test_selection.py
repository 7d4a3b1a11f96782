"""`make near`: the tests that import what changed come first, and what lies too far or begins too late is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.near.__main__ import TimeLimit
from tests.near.selection import Imports, module_of, nearest

ROOT = Path(__file__).parents[2]
SMALL = Imports(
    {
        "segue.units": frozenset(),
        "segue.policy.decide": frozenset({"segue.units"}),
        "segue.controller.steps": frozenset({"segue.policy.decide"}),
        "segue.flows.train": frozenset({"segue.controller.steps"}),
        "tests.test_units": frozenset({"segue.units", "segue.policy.decide"}),
        "tests.test_words": frozenset({"segue.units"}),
        "tests.policy.test_decide": frozenset({"segue.policy.decide"}),
        "tests.controller.test_steps": frozenset({"segue.controller.steps"}),
        "tests.flows.test_train": frozenset({"segue.flows.train"}),
    }
)


def test_the_nearest_tests_come_first_and_the_one_with_the_name_before_others():
    found = nearest(["segue/units.py", "README.md"], SMALL)
    assert found == ["tests.test_units", "tests.test_words", "tests.policy.test_decide", "tests.controller.test_steps"]


def test_a_changed_test_is_the_nearest_to_itself():
    assert nearest(["tests/policy/test_decide.py"], SMALL) == ["tests.policy.test_decide"]
    assert nearest(["docs/index.md", "segue/new.py"], SMALL) == []


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ("segue/launch/memory.py", "tests.launch.test_memory"),
        ("segue/runlog/history.py", "tests.runlog.test_history"),
        ("flows/train.py", "tests.flows.waiting.test_clock_jumps"),
        ("tests/support/rooms.py", "tests.test_walls"),
    ],
)
def test_of_this_clone(changed, first):
    assert first in nearest([changed], Imports.under(ROOT))[:8]


def test_names_of_modules():
    assert module_of("flows/train.py") == "segue.flows.train"
    assert module_of("segue/stores/__init__.py") == "segue.stores"
    assert module_of("tests/near/selection.py") == "tests.near.selection"


def test_no_test_begins_after_the_limit_except_the_first():
    limit = TimeLimit(0.0)
    assert [limit.pytest_runtest_protocol(None) for _ in range(3)] == [None, True, True]
    assert limit.left == 2
