"""Many worlds in separate processes, and the sum of their results."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.workers import workers
from benchmarks.fencing.world import KINDS, Judged, World
from segue.signing import open_signer

_BATCH = 50
_MOST_SHOWN = 3


def run_worlds(count: int, *, first: int = 0, say: Callable[[str], None]) -> dict[str, Any]:
    """The number of worlds with a fault of each kind, the first faults, and the events of all worlds.

    Worlds with an even seed are unsigned, the others signed.
    """
    started, kinds, ends, shown = time.monotonic(), Counter[str](), Counter[str](), []
    sums = Counter[str]()
    for done, judged in enumerate(_judged(range(first, first + count)), start=1):
        sums.update(wrong_reads=judged.wrong_reads, commits=judged.commits, resumes=judged.resumes)
        ends += judged.ends
        kinds.update({kind for kind, _ in judged.wrong})
        shown += [f"world {judged.seed}: {kind}: {why}" for kind, why in judged.wrong if kinds[kind] <= _MOST_SHOWN]
        if done % _BATCH == 0:
            say(f"{done} of {count} worlds, {sum(kinds.values())} with faults")
    return {
        "worlds": count,
        **{kind: kinds[kind] for kind in KINDS},
        "faults": shown,
        **sums,
        "ends": dict(ends.most_common()),
        "seconds": round(time.monotonic() - started, 1),
    }


def _judged(seeds: range) -> Iterator[Judged]:
    batches = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    if len(batches) == 1:
        yield from _judged_batch(seeds)
        return
    with workers(os.cpu_count() or 1) as pool:
        for found in pool.map(_judged_batch, batches):
            yield from found


def _judged_batch(seeds: range) -> list[Judged]:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_text("k" * 64)
        signed = partial(open_signer, f"file:{key}")
        with _quiet():
            return [World(seed, signer=signed() if seed % 2 else None).run() for seed in seeds]


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not log repeated reads, because there are thousands of them."""
    logger = logging.getLogger("segue")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
