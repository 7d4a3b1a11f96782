"""Recognizes values that belong to a process or its machine, and not to the run. The module is pure.

Examples are run ids, temporary names, ports, restart counts, numbers of processors, and the order of a set. Values of a
process may differ after a resume without any loss of state. If a value of a process affects training, the replayed
steps show the effect.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

ANY_ORDER = " in any order"
"""Suffix of the path of a hash that does not depend on the order of a collection."""


class Change(NamedTuple):
    """A value of the setup that has changed since the commit."""

    path: str
    before: Any
    now: Any
    text: str
    """The change in words."""


_NAMES = re.compile(
    r"(^|_)(restarts?|restart_count|resum\w*|attempts?|retr(y|ies)|jobs?|job_id|run_id|run_name|task_id|pod|workers?"
    r"|num_workers|cpus?|cpu_count|cores?|n_jobs|nproc|threads?|tmp|tmpdir|temp_?dir|tempfile|scratch|cache_dir|log_?dir"
    r"|session|session_id|token|rank|local_rank|world_size|instance|instance_id|machine|user|cwd|argv|boot\w*|load_?avg|uptime"
    r"|free_memory|available_memory)$|^load$",
    re.IGNORECASE,
)
"""Common names that programs use for values of a process."""

_DERIVED: tuple[Callable[[float], float], ...] = (
    lambda n: n,
    lambda n: n - 1,
    lambda n: max(n - 1, 1),
    lambda n: n + 1,
    lambda n: n // 2,
    lambda n: max(n // 2, 1),
    lambda n: n * 2,
    lambda n: min(n, 32),
    lambda n: min(32, n + 4),
    lambda n: min(n, 16),
    lambda n: min(n, 8),
)
"""Common formulas by which code computes numbers of threads and workers from the number of processors."""


def belongs_to_process(
    component: str,
    changes: Sequence[Change],
    *,
    known: Collection[str],
    machines: tuple[Mapping[str, Any], Mapping[str, Any]],
    permuted: Collection[str],
    has_names: bool,
) -> frozenset[str]:
    """Return the paths of the changes that belong to the process or the machine.

    `known` contains the values that differed in a second process with the same recipe. `machines` contains the
    properties of the machine of the commit and of this machine. `permuted` contains the collections with the same items
    in another order. If `has_names` is true, the values are plain, and the function also judges by names and values.
    """
    own = {change.path for change in changes if f"{component} {change.path}" in known}
    own |= {change.path for change in changes if change.path in permuted}
    if has_names:
        own |= _in_another_order(changes)
        own |= {change.path for change in changes if _NAMES.search(_name(change.path))}
        own |= {change.path for change in changes if _follows_from(change, *machines)}
    return frozenset(own)


def _name(path: str) -> str:
    """Return the last part of a path that is not a number."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), path)


def _in_another_order(changes: Sequence[Change]) -> set[str]:
    """Return the items of collections that have the same values in another order, e.g. lists made from a set."""
    groups: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        parent, _, item = change.path.rpartition(".")
        if item.isdigit():
            groups[parent].append(change)
    return {change.path for items in groups.values() if _is_permuted(items) for change in items}


def _is_permuted(items: Sequence[Change]) -> bool:
    # In a set, the order of strings differs in each process, but the order of numbers is always the same.
    if not all(isinstance(each.before, str) for each in items):
        return False
    return sorted(repr(each.before) for each in items) == sorted(repr(each.now) for each in items)


def _follows_from(change: Change, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether both values result from one property of their machines by the same formula."""
    differing = ((before[name], now[name]) for name in before.keys() & now.keys() if before[name] != now[name])
    return any(_follows(change, one, other) for one, other in differing)


def _follows(change: Change, one: Any, other: Any) -> bool:
    if all(map(_is_number, (change.before, change.now, one, other))):
        return any(derived(one) == change.before and derived(other) == change.now for derived in _DERIVED)
    if not all(isinstance(value, str) and value for value in (change.before, change.now, one, other)):
        return False
    return one in change.before and change.before.replace(one, other) == change.now


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
