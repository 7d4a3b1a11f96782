"""A verification that passed leaves the logs of its two runs; one that did not leaves everything."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.checkpoints.loading.select import newest_valid
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import open_store
from segue.stores.base import StoreWriteError
from segue.testing.faulty_store import FaultyStore
from segue.verification.verifications import tidy
from tests.verification.drills import SLOT, red, sound

WEEK = timedelta(days=7)


@pytest.fixture
def train(make_spec, open_log, fork_server):
    """Train both runs of a verification in the test's own store."""

    def trained(verification):
        for run_id in (verification.undisturbed, verification.disturbed):
            spec = make_spec(run_id=run_id, steps=20)
            runlog = open_log(spec)
            fork_server.run_to_the_end(runlog, spec)
            assert decide_next(runlog, spec, clock=SystemClock()).action == "finished"
        return runlog.store

    return trained


def runs(store) -> set[str]:
    return set(store.folders())


def objects(store, run_id: str, part: str) -> list[str]:
    return [item.key for item in store.list_objects(f"{run_id}/{part}/")]


@pytest.mark.matrix
def test_checkpoints_go_and_logs_stay_until_the_next_one_has_passed(train):
    first, second = sound(), sound(slot=SLOT + WEEK)
    store = train(first)
    tidy(store, [first], first)
    for run_id in (first.undisturbed, first.disturbed):
        assert objects(store, run_id, "attempts") == []
        assert objects(store, run_id, "log")
        history = read_history(RunLog(store, run_id).reload())
        assert history.is_over
        assert all(checkpoint.is_pruned for checkpoint in history.checkpoints), "none is taken for damaged"
        assert newest_valid(RunLog(store, run_id).reload(), epoch=99) is None
    train(second)
    tidy(store, [first, second], second)
    assert runs(store) == {second.undisturbed, second.disturbed}
    tidy(store, [first, second], second)
    assert objects(store, second.disturbed, "log"), "a second call changes nothing"


@pytest.mark.matrix
def test_one_that_did_not_pass_keeps_everything_also_when_a_later_one_passes(train):
    bad, good = red(), sound(slot=SLOT + WEEK)
    store = train(bad)
    before = [item.key for item in store.list_objects("")]
    tidy(store, [bad], bad)
    assert [item.key for item in store.list_objects("")] == before
    train(good)
    tidy(store, [bad, good], good)
    assert objects(store, bad.disturbed, "attempts")
    assert objects(store, good.disturbed, "attempts") == []


def test_what_cannot_be_removed_is_removed_by_a_second_call(train):
    one = sound()
    store = train(one)
    faulty = FaultyStore(open_store(store.url), fails=lambda name, key: name == "delete")
    with pytest.raises(StoreWriteError):
        tidy(faulty, [one], one)
    tidy(store, [one], one)
    assert objects(store, one.undisturbed, "attempts") + objects(store, one.disturbed, "attempts") == []
