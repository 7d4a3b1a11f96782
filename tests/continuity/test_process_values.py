"""Differences between two builds of one recipe: which belong to the process or the machine, and which are judged."""

from __future__ import annotations

import pytest

from segue.continuity.process_values import ANY_ORDER
from segue.continuity.recipe_diff import (
    DATA,
    HYPERPARAMETERS,
    MACHINE,
    SURROUNDINGS,
    UNTRACKED,
    differing_paths,
    setup_changes,
)

ONE = {"cpus": 8, "host": "node-a", "temporary_folder": "/tmp/a"}
OTHER = {"cpus": 4, "host": "node-b", "temporary_folder": "/tmp/b"}


def changes(before, now, *, component=HYPERPARAMETERS, known=()):
    """What is judged and what is noted, as a resume on another machine compares them."""
    recorded = [{component: tree, UNTRACKED: {MACHINE: facts}} for tree, facts in ((before, ONE), (now, OTHER))]
    found = setup_changes(*recorded, environment_changes=(), process_values=known)
    return bool(found.findings), bool(found.noted)


@pytest.mark.parametrize(
    ("path", "before", "now"),
    [
        ("loss.run_id", "a1", "b2"),
        ("loss.defaults.restarts", 0, 1),
        ("loss.restarts", 0, 1),
        ("model.is_resumed", False, True),
        ("loss.num_workers", 8, 2),
        ("loss.pool", 7, 3),
        ("loss.half", 4, 2),
        ("loss.label", "train on node-a", "train on node-b"),
        ("loss.at", "/tmp/a/cache", "/tmp/b/cache"),
    ],
)
def test_values_of_a_process_or_its_machine_are_noted(path, before, now):
    assert changes({path: before}, {path: now}) == (False, True)


@pytest.mark.parametrize(
    ("path", "before", "now"),
    [("loss.delta", 1.0, 0.5), ("loss.pool", 7, 2), ("model.depth", 4, 5), ("loss.label", "train on node-a", "node-c")],
)
def test_any_other_value_is_judged(path, before, now):
    assert changes({path: before}, {path: now}) == (True, False)


def test_strings_in_the_order_of_a_set_are_noted_and_numbers_or_other_strings_are_judged():
    assert changes({"loss.names": ["a", "b", "c"]}, {"loss.names": ["c", "a", "b"]}) == (False, True)
    assert changes({"loss.names": ["a", "b"]}, {"loss.names": ["a", "c"]}) == (True, False)
    assert changes({"optimizer.0.betas": [0.9, 0.999]}, {"optimizer.0.betas": [0.999, 0.9]}) == (True, False)


def test_a_long_collection_in_another_order_is_noted_and_one_with_other_items_is_judged():
    before = {"data.dataset.files": "1" * 32, f"data.dataset.files{ANY_ORDER}": "5" * 16}
    assert changes(before, before | {"data.dataset.files": "2" * 32}, component=DATA) == (False, True)
    now = {"data.dataset.files": "2" * 32, f"data.dataset.files{ANY_ORDER}": "6" * 16}
    assert changes(before, now, component=DATA) == (True, False)
    old = {"data.dataset.files": "1" * 32}  # A checkpoint of an older version has no hash in any order.
    assert changes(old, before, component=DATA) == (False, False)


def test_what_a_second_process_had_otherwise_is_known_to_be_its_own():
    before, now = {"loss.color": 17, "loss.delta": 1.0}, {"loss.color": 200, "loss.delta": 1.0}
    assert changes(before, now) == (True, False)
    known = differing_paths({HYPERPARAMETERS: before}, {HYPERPARAMETERS: {"loss.color": 90, "loss.delta": 1.0}})
    assert changes(before, now, known=known) == (False, True)
    assert changes(before, now | {"loss.delta": 2.0}, known=known) == (True, True)


def test_what_the_code_reads_while_it_runs_is_noted():
    recorded = [{UNTRACKED: {SURROUNDINGS: {"environment variable SCALE": value}}} for value in ("#1", "#2")]
    found = setup_changes(*recorded, environment_changes=())
    assert found.findings == ()
    assert "environment variable SCALE" in found.noted[0].sentence


def test_default_arguments_that_an_older_checkpoint_has_by_their_numbers_are_not_compared():
    assert changes({"loss.defaults.0": 1}, {"loss.defaults.delta": 2}) == (False, False)
    assert changes({"loss.defaults.delta": 1}, {"loss.defaults.delta": 2}) == (True, False)
    assert changes({"loss.defaults.0": 1, "loss.a": 1}, {"loss.defaults.delta": 2, "loss.a": 2}) == (True, False)
