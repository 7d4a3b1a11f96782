"""A run has one living parent; a dead one is found by its heartbeat, and only after its timeout."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from segue.clock import SystemClock
from segue.controller.recovery import Life, OrphanWatch, ParentHeartbeat, register_start, withdraw_start
from segue.errors import ParentAliveError
from segue.process import this_machine
from segue.records import ParentRecord
from segue.runlog.parents import parents, read_parent, write_parent
from segue.stores import LocalStore, StoreWriteError
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from tests.flows.test_runs import until

FAST = {"heartbeat_seconds": 0.04, "heartbeat_timeout_seconds": 2}


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


@pytest.fixture
def spec(make_spec):
    return make_spec(liveness=FAST)


def elsewhere(store, spec, **fields):
    """Writes the record of a parent on another machine."""
    common = {"run_id": spec.run_id, "parent_id": "other", "host": "elsewhere", "timeout_seconds": 20.0}
    record = ParentRecord(**common | {"beat_at": datetime(2026, 1, 1, tzinfo=UTC)} | fields)
    write_parent(store, record)
    return record


def test_while_a_parent_is_alive_another_one_is_refused_and_changes_nothing(store, spec):
    first = ParentHeartbeat(store, spec, clock=SystemClock(), flow_run_id="flow-1")
    first.take_over()
    with first.beating():
        with pytest.raises(ParentAliveError, match=r"already has a parent on .* \(flow run flow-1\)") as raised:
            ParentHeartbeat(store, spec, clock=SystemClock(), flow_run_id="flow-2").take_over()
        assert raised.value.flow_run_id == "flow-1"
        assert read_parent(store, spec.run_id).flow_run_id == "flow-1"
        first.require_own()
    first.close()
    assert parents(store) == []


def test_a_parent_on_another_machine_is_dead_after_its_timeout_and_not_before(store, spec):
    clock, record = FakeClock(), elsewhere(store, spec)
    watch = OrphanWatch(store, clock=clock)
    while (life := watch.judge(record)) is not Life.DEAD:
        assert life is Life.UNKNOWN
        clock.advance(0.5)
    assert clock.monotonic() == pytest.approx(20, abs=1)


def test_a_changing_counter_keeps_a_parent_alive_whatever_its_clock_says(store, spec):
    clock = FakeClock()
    watch = OrphanWatch(store, clock=clock)
    for counter in range(30):
        record = elsewhere(store, spec, counter=counter)
        assert watch.judge(record) is (Life.ALIVE if counter else Life.UNKNOWN)
        clock.advance(10)
    lives = []
    for _ in range(3):
        lives.append(watch.judge(record))
        clock.advance(10)
    assert lives == [Life.ALIVE, Life.ALIVE, Life.DEAD]


def test_a_dead_parent_is_replaced_after_its_timeout_and_at_once_when_it_is_known_to_be_dead(store, spec):
    clock = FakeClock()
    elsewhere(store, spec)
    ParentHeartbeat(store, spec, clock=clock).take_over()
    assert clock.monotonic() > 20
    clock = FakeClock()
    elsewhere(store, spec)
    ParentHeartbeat(store, spec, clock=clock).take_over(after="other")
    assert clock.monotonic() == 0


def test_a_parent_whose_process_has_ended_on_this_machine_is_dead_at_once(store, spec, tmp_path):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from segue.clock import SystemClock\n"
        "from segue.controller.recovery import ParentHeartbeat\n"
        "from segue.spec import RunSpec\n"
        "from segue.stores import LocalStore\n"
        "spec = RunSpec.model_validate_json(sys.argv[2])\n"
        "ParentHeartbeat(LocalStore(Path(sys.argv[1])), spec, clock=SystemClock()).take_over()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(store.root), spec.model_dump_json()], check=False)
    assert killed.returncode == -9
    clock = FakeClock()
    (dead,) = OrphanWatch(store, clock=clock).find()
    assert (dead.run_id, clock.monotonic()) == (spec.run_id, 0)


def test_an_exception_leaves_the_run_open_and_its_parent_dead_at_once(store, spec):
    parent, clock = ParentHeartbeat(store, spec, clock=SystemClock()), FakeClock()
    parent.take_over()
    with pytest.raises(ArithmeticError), parent.beating():
        raise ArithmeticError
    (dead,) = OrphanWatch(store, clock=clock).find()
    assert (dead.has_left, clock.monotonic()) == (True, 0)
    next_parent = ParentHeartbeat(store, spec, clock=clock)
    next_parent.take_over()
    assert clock.monotonic() == 0


def test_a_parent_that_was_suspended_and_replaced_stops_and_leaves_the_record_alone(store, spec):
    first, second = (ParentHeartbeat(store, spec, clock=SystemClock(), flow_run_id=name) for name in ("one", "two"))
    first.take_over()
    with first.beating():
        second.take_over(after=read_parent(store, spec.run_id).parent_id)

        def is_replaced():
            try:
                first.require_own()
            except ParentAliveError as error:
                return error.flow_run_id == "two"

        until(is_replaced, what="the first parent to notice")
    first.close()
    assert read_parent(store, spec.run_id).flow_run_id == "two"


def test_the_same_host_name_in_another_container_is_another_machine(store, spec):
    clock = FakeClock()
    record = elsewhere(store, spec, host=socket.gethostname(), machine="another boot", process="999999999")
    assert OrphanWatch(store, clock=clock).judge(record) is Life.UNKNOWN
    here = elsewhere(store, spec, host=socket.gethostname(), machine=this_machine(), process="999999999")
    assert OrphanWatch(store, clock=clock).judge(here) is Life.DEAD


def test_no_parent_is_dead_while_the_store_takes_no_writes(store, spec):
    elsewhere(store, spec)
    full = FaultyStore(store, fails=lambda operation, key: operation == "put")
    with pytest.raises(StoreWriteError):
        OrphanWatch(full, clock=FakeClock()).find()
    fills_up = FaultyStore(store, fails=lambda operation, key: operation == "put" and clock.monotonic() > 10)
    clock = FakeClock()
    with pytest.raises(StoreWriteError):
        OrphanWatch(fills_up, clock=clock).find()
    assert [record.run_id for record in OrphanWatch(store, clock=FakeClock()).find()] == [spec.run_id]


def test_a_parent_that_wakes_after_another_one_ended_the_run_does_not_open_it_again(store, spec):
    first = ParentHeartbeat(store, spec, clock=SystemClock())
    first.take_over()
    with first.beating():
        store.delete([".parents/tiny.json"])

        def has_noticed():
            try:
                first.require_own()
            except ParentAliveError:
                return True

        until(has_noticed, what="the parent to notice")
    assert parents(store) == []


def test_only_dead_parents_are_found(store, make_spec):
    alive, dead = (make_spec(run_id=name, liveness=FAST) for name in ("alive", "dead"))
    elsewhere(store, dead, timeout_seconds=1.0)
    parent = ParentHeartbeat(store, alive, clock=SystemClock())
    parent.take_over()
    with parent.beating():
        assert [record.run_id for record in OrphanWatch(store, clock=SystemClock()).find()] == ["dead"]


def test_a_requested_start_is_open_until_a_parent_begins_or_it_is_refused(store, spec):
    clock = FakeClock()
    register_start(store, spec, clock=clock)
    register_start(store, spec, clock=clock)
    (found,) = OrphanWatch(store, clock=clock).find()
    assert (found.parent_id, found.run_id) == ("", spec.run_id)
    ParentHeartbeat(store, spec, clock=FakeClock()).take_over()
    withdraw_start(store, spec.run_id)
    assert read_parent(store, spec.run_id).parent_id
    register_start(store, spec, clock=clock)
    assert read_parent(store, spec.run_id).parent_id
    store.delete([".parents/tiny.json"])
    register_start(store, spec, clock=clock)
    withdraw_start(store, spec.run_id)
    assert parents(store) == []


def test_a_store_that_fails_for_a_moment_does_not_end_the_heartbeat(store, spec, tmp_path, caplog):
    parent = ParentHeartbeat(store, spec, clock=SystemClock())
    parent.take_over()
    with parent.beating():
        store.root.rename(tmp_path / "away")
        until(lambda: "heartbeat of the parent not written" in caplog.text, what="a failed heartbeat")
        (tmp_path / "away").rename(store.root)
        before = read_parent(store, spec.run_id).counter
        until(lambda: read_parent(store, spec.run_id).counter > before, what="the next heartbeat")
