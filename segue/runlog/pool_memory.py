"""Stores the memory of a store's pools: one small object with all observations of pools and machines by the store's
runs.

Each change writes an object with the next number, by `put_if_absent`. If several runs add observations at the same
time, one run wins. The other runs read the winner's object and add to it. Readers use the object with the highest
number. Adding the same observations again changes nothing. A crash between the write and the deletion of older objects
leaves objects that the next change deletes.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from datetime import datetime
from typing import TypeVar

from segue.errors import MissingObjectError
from segue.records import SeenInterval, SeenMachine, SeenPools, SeenStart
from segue.runlog import keys
from segue.stores.base import Store, StoreWriteError

log = logging.getLogger(__name__)

MOST_INTERVALS, MOST_STARTS, MOST_MACHINES, MOST_POOLS = 100, 20, 100, 50
"""Maximum number of pools, and of the newest intervals, starts and machine observations that are kept for a pool."""
_MOST_IN_LOG = 30
"""Number of intervals of each pool that a run copies into its log, the newest first.

In a decision, the intervals of other runs together have at most the weight of four intervals.
"""
_TRIES = 5
_KEPT = 2
"""Number of objects that are kept. A reader may have listed the store before the newest object existed."""
_Seen = TypeVar("_Seen", SeenInterval, SeenStart, SeenMachine)
_NUMBER = re.compile(r"(\d{8})\.json")


def read_memory(store: Store) -> SeenPools:
    """Return what the runs of a store have observed about its pools.

    The result is empty if there is no memory, or if the memory cannot be parsed.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _newest(store)[1]


def of_others(known: SeenPools, pools: Collection[str], *, log_id: str = "") -> SeenPools:
    """Return the observations of these pools by other runs, with the newest intervals of each pool.

    The result does not contain observations of the run with the log `log_id`. The function is pure.
    """
    by_others = [each for each in known.intervals if each.log_id != log_id]
    newest = [each for pool in pools for each in [one for one in by_others if one.pool == pool][-_MOST_IN_LOG:]]
    return SeenPools(
        intervals=tuple(sorted(newest, key=lambda each: each.begun_at)),
        starts=tuple(each for each in known.starts if each.pool in pools and each.log_id != log_id),
        machines=tuple(each for each in known.machines if each.pool in pools and each.log_id != log_id),
    )


def add_to_memory(store: Store, seen: SeenPools) -> bool:
    """Add observations to the memory. Return whether the memory now has the observations.

    If other runs win several tries, the function returns False. A later call adds the same observations.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again.
    """
    for _ in range(_TRIES):
        numbers, before = _newest(store)
        after = merged(before, seen)
        if after == before:
            return True
        number = max(numbers, default=0) + 1
        if not store.put_if_absent(keys.memory_key(number), after.model_dump_json().encode()):
            continue
        numbers = _numbers(store)
        if max(numbers, default=number) > number:
            continue  # The number was free only because its object was deleted meanwhile: newer ones lack this one.
        _drop(store, [each for each in numbers if each <= number - _KEPT])
        return True
    return False


def _drop(store: Store, numbers: Iterable[int]) -> None:
    """Delete older objects of the memory. A failure only makes the listing longer."""
    try:
        store.delete([keys.memory_key(number) for number in numbers])
    except StoreWriteError as error:
        log.warning("older objects of the memory of pools were not deleted reason=%s", error)


def merged(before: SeenPools, added: SeenPools) -> SeenPools:
    """Return both sets of observations, without repetition.

    If two observations describe the same interval, start or attempt, the longer observation is kept. The function is
    pure.
    """
    intervals = _newest_of(
        [*before.intervals, *added.intervals],
        key=lambda each: (each.pool, each.log_id, each.begun_at, each.is_up),
        most=MOST_INTERVALS,
        at=lambda each: each.begun_at,
    )
    starts = _newest_of(
        [*before.starts, *added.starts],
        key=lambda each: (each.pool, each.log_id, each.decided_at),
        most=MOST_STARTS,
        at=lambda each: each.decided_at,
    )
    machines = _newest_of(
        [*before.machines, *added.machines],
        key=lambda each: (each.machine.kind, each.machine.name, each.log_id, each.segment, each.attempt),
        most=MOST_MACHINES,
        at=lambda each: each.begun_at,
    )
    prices = dict(before.prices)
    for pool, price in added.prices.items():
        if pool not in prices or prices[pool].seen_at < price.seen_at:
            prices[pool] = price
    seen = [(each.begun_at, each.pool) for each in intervals] + [(each.decided_at, each.pool) for each in starts]
    seen += [(each.begun_at, each.pool) for each in machines]
    seen += [(price.seen_at, pool) for pool, price in prices.items()]
    kept = list(dict.fromkeys(pool for _, pool in sorted(seen, reverse=True)))[:MOST_POOLS]
    return SeenPools(
        intervals=tuple(each for each in intervals if each.pool in kept),
        starts=tuple(each for each in starts if each.pool in kept),
        prices={pool: prices[pool] for pool in sorted(prices) if pool in kept},
        machines=tuple(each for each in machines if each.pool in kept),
    )


def _newest_of(
    seen: Iterable[_Seen], *, key: Callable[[_Seen], Hashable], most: int, at: Callable[[_Seen], datetime]
) -> list[_Seen]:
    """Return the newest observations of each pool, in the order of their times."""
    found: dict[Hashable, _Seen] = {}
    for each in seen:
        known = found.get(key(each))
        if known is None or known.seconds <= each.seconds:
            found[key(each)] = each
    by_pool: defaultdict[str, list[_Seen]] = defaultdict(list)
    for each in sorted(found.values(), key=at):
        by_pool[each.pool].append(each)
    return sorted((each for these in by_pool.values() for each in these[-most:]), key=at)


def _numbers(store: Store) -> list[int]:
    """Return the numbers of all objects in ascending order."""
    names = (item.key.removeprefix(keys.MEMORY_PREFIX) for item in store.list_objects(keys.MEMORY_PREFIX))
    return sorted(int(found[1]) for name in names if (found := _NUMBER.fullmatch(name)))


def _newest(store: Store) -> tuple[list[int], SeenPools]:
    """Return the numbers of all objects, and the content of the newest object that can be parsed."""
    numbers = _numbers(store)
    for number in reversed(numbers):
        try:
            return numbers, SeenPools.model_validate_json(store.get(keys.memory_key(number)))
        except MissingObjectError:
            continue  # A run has just deleted it, so there is a newer one, and this look is repeated by its caller.
        except ValueError as error:
            log.warning("the memory of pools cannot be parsed number=%d reason=%s", number, error)
    return numbers, SeenPools()
