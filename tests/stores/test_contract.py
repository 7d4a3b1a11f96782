"""What every store promises, held against a folder and servers of three clouds' protocols that share no code."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from segue.errors import BadKeyError, MissingObjectError
from segue.spec import StoreSpec
from segue.stores import Store, open_store
from tests.stores.conftest import PLACES

pytestmark = pytest.mark.parametrize("place", PLACES, indirect=True)

CLIMBING_KEYS = ["", "/", "/abs", "a/", "a//b", ".", "..", "../x", "a/../b", "a/./b", "a/.."]
ODD_CHARACTERS = ["a\\b", "a\0b", "a\nb", "a\n", "\n", "a/b\n", "a\rb", "a\tb", " a", "~a", "a%2e", "a*", "a:b"]
RESERVED_KEYS = [".staged-x", "a/.staged-x", ".staged-x/b"]
ODD_KEYS = ["run-1/Übung 7/日本.json", "a b/c d ", "a=b,c@d+e-f", ".hidden/x", "a/..b", "a/...", "0", "x" * 200]


def keys(store: Store, prefix: str = "") -> list[str]:
    return [item.key for item in store.list_objects(prefix)]


def test_put_if_absent_creates_once_and_never_replaces(store: Store) -> None:
    assert store.put_if_absent("run/log/0", b"first") is True
    assert store.put_if_absent("run/log/0", b"second") is False
    assert store.put_if_absent("run/log/0", b"first") is False
    assert store.get("run/log/0") == b"first"


@pytest.mark.matrix
def test_put_if_absent_creates_again_after_a_delete(store: Store) -> None:
    assert store.put_if_absent("a/b", b"first")
    store.delete(["a/b"])
    assert store.put_if_absent("a/b", b"second")
    assert store.get("a/b") == b"second"


def test_put_if_absent_does_not_replace_what_put_wrote(store: Store) -> None:
    store.put("a", b"")
    assert store.put_if_absent("a", b"x") is False
    assert store.get("a") == b""


def test_put_replaces_the_whole_object(store: Store) -> None:
    for durable in (True, False):
        store.put("a/b", b"a long first version", durable=durable)
        store.put("a/b", memoryview(b"--short--")[2:-2], durable=durable)
        assert (store.get("a/b"), store.size("a/b")) == (b"short", 5)


def test_what_is_missing_is_said_to_be_missing(store: Store) -> None:
    store.put("a/b", b"x")
    for key in ("nothing", "a", "a/b/c", "a/bb"):
        for read in (
            store.get,
            store.size,
            lambda key: store.get_range(key, 0, 1),
            lambda key: store.get_range(key, 0, 0),
        ):
            with pytest.raises(MissingObjectError) as raised:
                read(key)
            assert raised.value.key == key


def test_a_range_ends_where_the_object_ends(store: Store) -> None:
    store.put("a", b"0123456789")
    for start, length in itertools.product([0, 3, 9, 10, 11], [0, 1, 4, 10, 99]):
        assert store.get_range("a", start, length) == b"0123456789"[start : start + length], (start, length)


@pytest.mark.matrix
def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("a/empty", b"")
    assert (store.get("a/empty"), store.size("a/empty"), store.get_range("a/empty", 0, 4)) == (b"", 0, b"")
    assert store.list_objects("a/") == [("a/empty", 0)]


def test_a_negative_range_is_refused(store: Store) -> None:
    store.put("a", b"0123456789")
    for start, length in [(-1, 2), (2, -1)]:
        with pytest.raises(ValueError, match="negative"):
            store.get_range("a", start, length)


def test_a_listing_is_sorted_whole_and_leaks_no_sibling(store: Store) -> None:
    for key in ("run-10/log/0", "run-1/log/1", "run-1/log/0", "run-1/b/c/d", "run-1", "run-1x", "run/a"):
        if not (key == "run-1" and "://" not in store.url):  # In a folder a name is a file or a folder.
            store.put(key, key.encode())
    assert store.list_objects("run-1/") == [("run-1/b/c/d", 11), ("run-1/log/0", 11), ("run-1/log/1", 11)]
    assert keys(store, "run-1/log/") == ["run-1/log/0", "run-1/log/1"]
    assert keys(store, "run-1/lo/") == keys(store, "run-1/log/0/") == keys(store, "nothing/") == []
    assert [key for key in keys(store) if key != "run-1"] == sorted(
        [*keys(store, "run-1/"), "run-10/log/0", "run-1x", "run/a"]
    )


def test_folders_are_the_top_level_ones_that_hold_something(store: Store) -> None:
    assert store.folders() == []
    for key in ("run-2/log/0", "run-1/a", "run-10/a", ".hidden/a", "file", "gone/a/b"):
        store.put(key, b"x")
    store.delete(["gone/a/b"])
    assert store.folders() == ["run-1", "run-10", "run-2"]


def test_delete_removes_what_is_there_and_passes_over_what_is_not(store: Store) -> None:
    for key in ("a/b/1", "a/b/2", "a/c"):
        store.put(key, b"x")
    store.delete(["a/b/1", "a/nothing", "nothing/at/all", "a/b", "a/c/below", "a/b/2"])
    assert keys(store) == ["a/c"]
    store.delete(["a/c", "a/c"])
    store.delete([])
    assert keys(store) == []


def test_a_bad_key_is_refused_by_every_operation(store: Store) -> None:
    operations: list[Callable[[str], object]] = [
        lambda key: store.put_if_absent(key, b"x"),
        lambda key: store.put(key, b"x"),
        store.get,
        lambda key: store.get_range(key, 0, 1),
        store.size,
        lambda key: store.delete([key]),
    ]
    for operation, key in itertools.product(operations, CLIMBING_KEYS + ODD_CHARACTERS + RESERVED_KEYS):
        with pytest.raises(BadKeyError) as raised:
            operation(key)
        assert raised.value.key == key
    for key in CLIMBING_KEYS + ODD_CHARACTERS + RESERVED_KEYS:
        if key not in {"", "a/"}:  # The two are good prefixes.
            with pytest.raises(BadKeyError):
                store.list_objects(key)
    assert store.list_objects("") == []


@pytest.mark.matrix
def test_odd_but_plain_keys_come_back_as_they_were(store: Store) -> None:
    for key in ODD_KEYS:
        assert store.put_if_absent(key, key.encode()) is True
    assert store.list_objects("") == sorted((key, len(key.encode())) for key in ODD_KEYS)
    for key in ODD_KEYS:
        assert store.get(key) == key.encode()
    store.delete(ODD_KEYS)
    assert store.list_objects("") == []


def test_the_check_passes_and_leaves_nothing_behind(store: Store) -> None:
    store.check()
    store.check()
    assert (store.list_objects(""), store.folders()) == ([], [])


def test_twenty_megabytes_come_back_byte_for_byte(store: Store) -> None:
    blob = bytes(range(251)) * 80_000 + b"the end"
    store.put("big/shard", memoryview(blob))
    assert store.get("big/shard") == blob
    assert store.size("big/shard") == len(blob)
    parts = [store.get_range("big/shard", start, 8 << 20) for start in range(0, len(blob), 8 << 20)]
    assert b"".join(parts) == blob


@pytest.mark.matrix
def test_a_listing_longer_than_a_page_is_whole(store: Store) -> None:
    names = [f"run/log/{number:08d}.json" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"{}", durable=False), names))
    assert store.list_objects("run/log/") == [(name, 2) for name in names]
    assert store.list_objects("run/log/", after=names[1050]) == [(name, 2) for name in names[1051:]]
    assert store.list_objects("run/log/", after=names[-1]) == store.list_objects("run/log/", after="run/logs") == []
    assert len(store.list_objects("run/log/", after="run/lo")) == len(names)
    assert store.folders() == ["run"]


LANES = 8


@pytest.mark.matrix
def test_of_two_racing_writers_exactly_one_wins_each_slot(store: Store, place: StoreSpec) -> None:
    slots_a_lane = 25
    racing = race_processes if place.endpoint_url is None else race_threads
    lanes = racing(place, slots_a_lane)
    for one, other in lanes:
        assert [mine + theirs for mine, theirs in zip(one, other, strict=True)] == [1] * slots_a_lane
    for lane, (one, _) in enumerate(lanes):
        for slot in range(0, slots_a_lane, 10):
            assert store.get(slot_key(lane, slot)) == (b"writer 0" if one[slot] else b"writer 1")


RACERS = 16


@pytest.mark.matrix
def test_of_sixteen_racers_for_one_key_exactly_one_wins(store: Store, place: StoreSpec) -> None:
    start = threading.Barrier(RACERS)

    def run(number: int) -> bool:
        own = open_store(place)
        start.wait()
        return own.put_if_absent("race/slot", f"racer {number}".encode())

    with ThreadPoolExecutor(RACERS) as pool:
        wins = list(pool.map(run, range(RACERS)))
    assert wins.count(True) == 1
    assert store.get("race/slot") == f"racer {wins.index(True)}".encode()


def slot_key(lane: int, slot: int) -> str:
    return f"race-{lane}/{slot:08d}.json"


def race(store: Store, writer: int, lane: int, slots: int, line_up: Callable[[], object]) -> list[bool]:
    wins = []
    for slot in range(slots):
        line_up()
        wins.append(store.put_if_absent(slot_key(lane, slot), f"writer {writer}".encode()))
    return wins


def race_threads(place: StoreSpec, slots: int) -> list[list[list[bool]]]:
    """All lanes at once: a server's answer takes a while, and most of it is waiting."""
    starts = [threading.Barrier(2) for _ in range(LANES)]
    with ThreadPoolExecutor(2 * LANES) as pool:
        lanes = [
            [pool.submit(race, open_store(place), writer, lane, slots, starts[lane].wait) for writer in range(2)]
            for lane in range(LANES)
        ]
        return [[run.result() for run in runs] for runs in lanes]


def race_processes(place: StoreSpec, slots: int) -> list[list[list[bool]]]:
    context = mp.get_context("spawn")
    start, ends = context.Barrier(2), [context.Pipe() for _ in range(2)]
    racers = [
        context.Process(target=race_lanes, args=(place, writer, slots, start, ends[writer][1])) for writer in range(2)
    ]
    for racer in racers:
        racer.start()
    for _, racers_end in ends:
        racers_end.close()  # So that the death of a racer ends the wait below.
    one, other = (end.recv() for end, _ in ends)
    for racer in racers:
        racer.join()
    return [list(pair) for pair in zip(one, other, strict=True)]


def race_lanes(place: StoreSpec, writer: int, slots: int, start: threading.Barrier, end: Connection) -> None:
    store = open_store(place)
    end.send([race(store, writer, lane, slots, start.wait) for lane in range(LANES)])
