"""The seconds of each operation at several sizes, and the exponent with which they grow."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from benchmarks.checkpoint.ours import OurSaver
from benchmarks.common.child import child_environment
from benchmarks.waiting.far_bucket import far_bucket
from benchmarks.waiting.logs import RUN_ID, spec_of, write_log
from segue.clock import SystemClock
from segue.continuity.witness import StepRow
from segue.controller.steps import open_run
from segue.curves.curve_rows import ROWS_PER_PART, Curve
from segue.runlog import keys
from segue.runlog.entries import SealEntry, encode
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore

Say = Callable[[str], None]
MOST = 1.1
"""Largest exponent that still counts as linear: seconds vary from one measurement to the next."""
_TRIES = 3
_LATENCY_SECONDS = 0.02
_MANY_TENSORS_BYTES = 16_000_000
_MEGABYTE = 1_000_000


class Growth(NamedTuple):
    """The seconds of one operation at several sizes."""

    what: str
    unit: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The slope of the logarithms over the last two factors of ten: 1 if seconds grow linearly."""
        (small, *_, large), (fast, *_, slow) = self.sizes[-3:], self.seconds[-3:]
        return math.log(slow / fast) / math.log(large / small)

    def facts(self) -> dict[str, Any]:
        """The figures for JSON."""
        seconds = {str(size): round(each, 5) for size, each in zip(self.sizes, self.seconds, strict=True)}
        return {"what": self.what, "unit": self.unit, "seconds": seconds, "exponent": round(self.exponent, 2)}


def measure(*, largest: int, say: Say) -> list[Growth]:
    """Measure all operations at sizes from the smallest size to `largest` times this size, in factors of ten."""
    factors = [10**power for power in range(int(math.log10(largest)) + 1)]
    found: list[Growth] = []
    for part in (_states, _tensors, _logs, _runs, _runs_in_a_bucket, _curves):
        say(part.__name__.strip("_").replace("_", " "))
        found += part(factors)
    return found


def _states(factors: Sequence[int]) -> list[Growth]:
    sizes = [_MEGABYTE * factor for factor in factors]
    return _saves("state", "bytes", sizes, [{f"t{i}": _numbers(size // 40) for i in range(10)} for size in sizes])


def _tensors(factors: Sequence[int]) -> list[Growth]:
    counts = [10 * factor for factor in factors]
    states = [{f"t{i}": _numbers(_MANY_TENSORS_BYTES // 4 // count) for i in range(count)} for count in counts]
    return _saves("tensors of a state of 16 MB", "tensors", counts, states)


def _numbers(count: int) -> torch.Tensor:
    return torch.randn(max(count, 1))


def _saves(what: str, unit: str, sizes: Sequence[int], states: Sequence[dict[str, torch.Tensor]]) -> list[Growth]:
    seconds = [_saved_and_restored(state) for state in states]
    return [
        Growth(f"save until it is committed, by {what}", unit, tuple(sizes), tuple(each[0] for each in seconds)),
        Growth(f"verified restore, by {what}", unit, tuple(sizes), tuple(each[1] for each in seconds)),
    ]


def _saved_and_restored(state: dict[str, torch.Tensor]) -> tuple[float, float]:
    saver = OurSaver()

    def save(step: int) -> None:
        saver.save(state, step)
        saver.wait()

    with TemporaryDirectory() as folder:
        saver.prepare(state, Path(folder))
        save(1)  # The first save allocates memory.
        saved = min(_timed(save, step) for step in range(2, _TRIES + 2))
        restored = _fastest(saver.load, 1)
        saver.close()
    return saved, restored


def _logs(factors: Sequence[int]) -> list[Growth]:
    lengths = tuple(20 * factor for factor in factors)
    seconds = [_read_and_looked(length) for length in lengths]
    kinds = ("read of a log", "look at a log that has one new record", "`segue status`", "`segue checkpoints`")
    return [
        Growth(f"{kind}, by records", "records", lengths, tuple(each[number] for each in seconds))
        for number, kind in enumerate(kinds)
    ]


def _read_and_looked(length: int) -> tuple[float, ...]:
    with TemporaryDirectory() as folder:
        store, now = LocalStore(Path(folder)).create(), SystemClock().now()
        spec = spec_of(length, now=now)
        write_log(store, spec, records=length, now=now)

        def read() -> RunLog:
            runlog = RunLog(store, RUN_ID).reload()
            read_history(runlog)
            return runlog

        known = read()  # Writes the packs, so that later reads need fewer requests.
        read_seconds = _fastest(read)
        looks = list[float]()
        for _ in range(_TRIES):
            _add_record(store, known.next_slot, read_history(known))
            looks.append(_timed(lambda: read_history(known.refresh())))
        commands = (_fastest(_command, name, RUN_ID, folder) for name in ("status", "checkpoints"))
        return read_seconds, min(looks), *commands


def _add_record(store: LocalStore, slot: int, history: History) -> None:
    """Add one record, which a waiting parent reads at its next poll."""
    assert history.newest is not None
    newest, seal = history.newest.ref, {"entry_id": uuid.uuid4().hex, "written_at": SystemClock().now()}
    entry = SealEntry(epoch=slot, attempt_id=newest.attempt_id, checkpoint=newest, rows=(), **seal)
    store.put(keys.log_key(RUN_ID, slot), encode(entry), durable=False)


def _runs(factors: Sequence[int]) -> list[Growth]:
    return [Growth("`segue runs`, by runs of the store", "runs", tuple(factors), tuple(map(_runs_listed, factors)))]


def _runs_listed(count: int) -> float:
    with TemporaryDirectory() as folder:
        _open_runs(StoreSpec(url=folder), count)
        return _fastest(_command, "runs", folder)


def _runs_in_a_bucket(factors: Sequence[int]) -> list[Growth]:
    seconds = tuple(map(_runs_listed_far_away, factors))
    what = f"`segue runs`, by runs of a bucket with {_LATENCY_SECONDS * 1e3:.0f} ms a request"
    return [Growth(what, "runs", tuple(factors), seconds)]


def _runs_listed_far_away(count: int) -> float:
    with far_bucket(latency_seconds=_LATENCY_SECONDS) as (near, far):
        _open_runs(near, count)
        return _fastest(_command, "runs", "--endpoint-url", str(far.endpoint_url), far.url)


def _open_runs(store: StoreSpec, count: int) -> None:
    for number in range(count):
        fields = {"run_id": f"run{number}", "recipe": "train:build", "steps": 10, "store": store.model_dump()}
        open_run(RunSpec.parse(fields), clock=SystemClock())


def _curves(factors: Sequence[int]) -> list[Growth]:
    counts = tuple(1_000 * factor for factor in factors)
    seconds = tuple(_fastest(_record, count) for count in counts)
    return [Growth("record and write of the loss curve, by rows", "rows", counts, seconds)]


def _record(rows: int) -> None:
    row, now = StepRow(1, "", "", None, 0.5, None, None, (0.1,), None), SystemClock().now()
    names = {"run": "run", "attempt_id": "a", "capacity": "spot", "environment": "e"}
    curve = Curve(segment=0, attempt=1, from_checkpoint=0, **names)
    for number in range(1, rows + 1):
        curve.add(row._replace(step=number), epoch=0, samples_seen=number, step_seconds=0.1, wall_time=now)
        if number % ROWS_PER_PART == 0 or number == rows:
            curve.take()[0].to_parquet()


def _command(*words: str) -> None:
    *command, store = words
    asked = [sys.executable, "-m", "segue", *command, "--store", store]
    subprocess.run(asked, stdout=subprocess.DEVNULL, env=child_environment(), check=True)


def _fastest(work: Callable[..., object], *given: object) -> float:
    return min(_timed(work, *given) for _ in range(_TRIES))


def _timed(work: Callable[..., object], *given: object) -> float:
    began = time.perf_counter()
    work(*given)
    return time.perf_counter() - began
