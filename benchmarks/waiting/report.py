"""The figures of the waiting benchmark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.waiting.far_bucket import far_bucket
from benchmarks.waiting.logs import RUN_ID, spec_of, write_log
from benchmarks.waiting.parents import wait_for
from benchmarks.waiting.remote_store import RemoteStore
from segue.clock import SystemClock
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.packs import PACK_SLOTS, Packs
from segue.stores import LocalStore, Store, open_store

Say = Callable[[str], None]

MOST_CPU_SHARE, MOST_REQUESTS_A_MINUTE, MOST_RELOAD_SECONDS = 0.02, 30.0, 3.0
"""The limits of the figures."""


@dataclass(frozen=True)
class Options:
    """The options of the measurement."""

    lengths: tuple[int, ...] = (100, 1_000, 10_000)
    """Numbers of records in the logs. The longest log is also reloaded."""
    seconds: float = 20.0
    """Seconds for which a parent waits on a folder."""
    remote_seconds: float = 30.0
    latency_seconds: float = 0.02
    with_s3: bool = True


def measure(options: Options, *, say: Say) -> dict[str, Any]:
    """Measure the wait at each length of the log, and the reading of the longest log, with and without its packs."""
    report: dict[str, Any] = {"lengths": list(options.lengths), "latency_seconds": options.latency_seconds}
    report["load_average_before"] = round(os.getloadavg()[0], 2)
    with TemporaryDirectory() as folder:
        for records in options.lengths:
            store = LocalStore(Path(folder) / str(records)).create()
            spec = spec_of(records, now=SystemClock().now())
            plan = write_log(store, spec, records=records, now=SystemClock().now())
            for place, seconds in (("local", options.seconds), ("remote", options.remote_seconds)):
                say(f"waiting {place}, {records} records")
                cost = wait_for(seconds, store, spec, plan, is_remote=place == "remote")
                report[f"cpu_share_{place}_{records}"] = round(cost.cpu_share, 5)
                report[f"requests_a_minute_{place}_{records}"] = round(cost.requests_a_minute, 1)
        far = RemoteStore(store, latency_seconds=options.latency_seconds)
        report |= _reloads("local", store, store, records, say)
        report |= _reloads("remote", store, far, records, say)
    if options.with_s3:
        with far_bucket(latency_seconds=options.latency_seconds) as (near, far_spec):
            say(f"writing {records} records to S3")
            write_log(open_store(near), spec, records=records, now=SystemClock().now())
            report |= _reloads("s3", open_store(near), open_store(far_spec), records, say)
    return report


def passed(report: Mapping[str, Any]) -> bool:
    """Whether every figure is within its limit."""
    limits = {
        "cpu_share_": MOST_CPU_SHARE,
        "requests_a_minute_remote": MOST_REQUESTS_A_MINUTE,
        "reload_seconds_": MOST_RELOAD_SECONDS,
    }
    figures = {key: value for key, value in report.items() if not key.endswith("_without_packs")}
    return all(value <= most for name, most in limits.items() for key, value in figures.items() if key.startswith(name))


def _reloads(name: str, near: Store, far: Store, records: int, say: Say) -> dict[str, float]:
    """Seconds and processor seconds in which a new process reads and folds the log from the far store."""
    say(f"reading {name}, {records} records")
    for item in near.list_objects(f"{RUN_ID}/log-packs/"):
        near.delete([item.key])
    figures = _timed(f"{name}_without_packs", far)
    _write_packs(near)
    return figures | _timed(name, far)


def _timed(name: str, store: Store) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    read_history(RunLog(store, RUN_ID).reload())
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return {f"reload_seconds_{name}": round(seconds, 3), f"reload_cpu_seconds_{name}": round(cpu_seconds, 3)}


def _write_packs(store: Store) -> None:
    log = RunLog(store, RUN_ID).reload()
    packs = Packs(store, RUN_ID)
    for number in range(log.next_slot // PACK_SLOTS):
        packs.write(number, log_id=log.log_id)
