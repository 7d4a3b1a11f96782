"""The memory of a store's pools: what is added stays, is bounded, and is the same whoever adds it first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.records import Machine, SeenInterval, SeenMachine, SeenPools, SeenPrice, SeenStart
from segue.runlog import keys
from segue.runlog.pool_memory import (
    MOST_INTERVALS,
    MOST_MACHINES,
    MOST_POOLS,
    MOST_STARTS,
    add_to_memory,
    merged,
    read_memory,
)
from segue.stores import LocalStore, StoreReadError, StoreWriteError
from segue.testing.faulty_store import FaultyStore

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def interval(number: int, *, pool: str = "spot-a", log: str = "log", seconds: float = 60.0, ended: bool = True):
    at = BEGIN + timedelta(hours=number)
    return SeenInterval(pool=pool, log_id=log, is_up=True, begun_at=at, seconds=seconds, has_ended=ended)


def start(number: int, *, seconds: float = 60.0):
    at = BEGIN + timedelta(hours=number)
    return SeenStart(pool="on-demand", log_id="log", decided_at=at, seconds=seconds)


def price(per_hour: float, *, hours: int = 0):
    return SeenPrice(per_hour=per_hour, currency="EUR", seen_at=BEGIN + timedelta(hours=hours))


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


def test_what_is_added_is_read_and_to_add_it_again_writes_nothing(store):
    assert read_memory(store) == SeenPools()
    seen = SeenPools(intervals=(interval(1),), starts=(start(2),), prices={"spot-a": price(1.0)})
    assert add_to_memory(store, seen)
    before = [item.key for item in store.list_objects(keys.MEMORY_PREFIX)]
    assert add_to_memory(store, seen)
    assert (read_memory(store), [item.key for item in store.list_objects(keys.MEMORY_PREFIX)]) == (seen, before)
    assert store.folders() == []  # No run can be taken for it.


def test_a_later_observation_of_an_interval_replaces_the_earlier_one(store):
    add_to_memory(store, SeenPools(intervals=(interval(1, seconds=60.0, ended=False),)))
    add_to_memory(store, SeenPools(intervals=(interval(1, seconds=90.0),)))
    assert read_memory(store).intervals == (interval(1, seconds=90.0),)


def test_the_newest_price_counts_whoever_adds_last(store):
    add_to_memory(store, SeenPools(prices={"spot-a": price(2.0, hours=5)}))
    add_to_memory(store, SeenPools(prices={"spot-a": price(1.0, hours=3)}))
    assert read_memory(store).prices["spot-a"].per_hour == 2.0


def machine(number: int, *, seconds: float = 60.0, end: str = "ended", name: str = "n1"):
    at, node = BEGIN + timedelta(hours=number), Machine(kind="slurm", name=name)
    place = {"pool": "spot-a", "log_id": "log", "segment": number, "attempt": 1}
    return SeenMachine(machine=node, begun_at=at, seconds=seconds, end=end, **place)


def test_later_evidence_about_an_attempts_machine_replaces_the_earlier_and_machines_are_bounded(store):
    add_to_memory(store, SeenPools(machines=(machine(1), machine(1, name="n2"))))
    add_to_memory(store, SeenPools(machines=(machine(1, seconds=90.0, end="wrong_numbers"),)))
    add_to_memory(store, SeenPools(machines=(machine(1),)))
    assert [(each.machine.name, each.end) for each in read_memory(store).machines] == [
        ("n1", "wrong_numbers"),
        ("n2", "ended"),
    ]
    many = SeenPools(machines=tuple(machine(number) for number in range(3 * MOST_MACHINES)))
    assert merged(many, SeenPools()).machines == many.machines[-MOST_MACHINES:]


def test_the_memory_is_bounded_and_keeps_the_newest():
    many = SeenPools(
        intervals=tuple(interval(number) for number in range(3 * MOST_INTERVALS)),
        starts=tuple(start(number) for number in range(3 * MOST_STARTS)),
    )
    found = merged(many, SeenPools())
    assert found.intervals == many.intervals[-MOST_INTERVALS:]
    assert found.starts == many.starts[-MOST_STARTS:]
    pools = SeenPools(intervals=tuple(interval(number, pool=f"p{number}") for number in range(2 * MOST_POOLS)))
    assert {each.pool for each in merged(pools, SeenPools()).intervals} == {
        f"p{number}" for number in range(MOST_POOLS, 2 * MOST_POOLS)
    }


LOGS, LENGTHS = st.sampled_from(["x", "y"]), st.sampled_from([10.0, 20.0])
ONE = st.builds(interval, st.integers(0, 30), pool=st.sampled_from(["a", "b"]), log=LOGS, seconds=LENGTHS)
PARTS = st.lists(ONE.map(lambda each: SeenPools(intervals=(each,))), max_size=12)


@given(PARTS, st.randoms())
def test_the_order_in_which_runs_add_does_not_matter(parts, random):
    def added(these):
        found = SeenPools()
        for part in these:
            found = merged(found, part)
        return {each.model_dump_json() for each in found.intervals}

    shuffled = list(parts)
    random.shuffle(shuffled)
    assert added(parts) == added(shuffled)


def test_many_runs_that_add_at_once_all_come_in(store):
    def add(number: int) -> None:
        while not add_to_memory(store, SeenPools(intervals=(interval(number, log=f"log{number}"),))):
            pass

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(24)))
    assert {each.log_id for each in read_memory(store).intervals} == {f"log{number}" for number in range(24)}
    assert len(store.list_objects(keys.MEMORY_PREFIX)) <= 3


def test_a_memory_that_cannot_be_parsed_is_passed_over_and_grows_on(store):
    add_to_memory(store, SeenPools(intervals=(interval(1),)))
    store.put_if_absent(keys.memory_key(2), b'{"intervals": [{"pool": 7}]}')
    assert read_memory(store).intervals == (interval(1),)
    add_to_memory(store, SeenPools(intervals=(interval(2),)))
    assert read_memory(store).intervals == (interval(1), interval(2))


def test_a_store_that_does_not_answer_is_an_error_and_loses_nothing(store):
    add_to_memory(store, SeenPools(intervals=(interval(1),)))
    with pytest.raises(StoreReadError):
        read_memory(FaultyStore(store, fails=lambda operation, key: operation == "list"))
    unwritable = FaultyStore(store, fails=lambda operation, key: operation == "put_if_absent")
    with pytest.raises(StoreWriteError):
        add_to_memory(unwritable, SeenPools(intervals=(interval(2),)))
    assert read_memory(store).intervals == (interval(1),)


def test_a_role_that_may_not_delete_adds_nevertheless(store, caplog):
    def refuse(operation, key):
        return operation == "delete"

    for number in range(5):
        assert add_to_memory(FaultyStore(store, fails=refuse), SeenPools(intervals=(interval(number),)))
    assert len(read_memory(store).intervals) == 5
    assert "older objects of the memory of pools were not deleted" in caplog.text
