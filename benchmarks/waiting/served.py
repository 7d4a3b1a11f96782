"""The memory and the processor time of one `segue serve` with many waiting runs, on a separate Prefect."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from prefect.client.schemas.actions import WorkPoolUpdate

from benchmarks.common.memory import cpu_seconds, family, pss_bytes
from benchmarks.waiting.logs import HEARTBEAT_SECONDS, beat, spec_of, write_log
from segue.clock import SystemClock
from segue.controller.recovery import register_start
from segue.deployments.follow import open_client, trigger
from segue.deployments.local_stack.stack import LocalStack
from segue.errors import OrchestratorError
from segue.records import SegmentPlan
from segue.runlog.parents import parents
from segue.spec import RunSpec
from segue.stores import LocalStore

Say = Callable[[str], None]

MOST_BYTES_A_RUN, MOST_CPU_SHARE_A_RUN = 20_000_000, 0.02
"""Limits of the figures: 100 runs in 2 GB."""
_RECORDS = 100
"""Records in each log: about eight preemptions."""
_STARTED_AT_ONCE = 10
_START_SECONDS, _SETTLE_SECONDS, _MEASURED_SECONDS = 600.0, 90.0, 120.0
"""Longest start of all runs; time until the first plots are drawn; time that is measured."""


def measure_served(runs: int, *, database: str | None = None, say: Say) -> dict[str, Any]:
    """Memory and processor time of a `segue serve` with this many runs, each of which waits for a living attempt.

    The attempts are imitated: a thread of the benchmark writes their heartbeats. `database` is the URL of an empty
    PostgreSQL database for the Prefect server; None: SQLite, on which this server stops answering at about 85 runs.

    Raises:
        OrchestratorError: not all of the runs began to wait within ten minutes.
    """
    with TemporaryDirectory(prefix="segue-served-") as folder:
        variables = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database is not None else {}
        stack = LocalStack(Path(folder) / "prefect", home=Path(folder), say=say, variables=variables)
        try:
            stack.start()
            with stack.settings():
                return _measure(stack, Path(folder), runs, say)
        finally:
            stack.stop()


def served_passed(report: Mapping[str, Any]) -> bool:
    """Whether memory and processor time are within their limits."""
    is_small: bool = report["memory_bytes"] <= MOST_BYTES_A_RUN * report["runs"]
    is_quiet: bool = report["cpu_share_a_run"] < MOST_CPU_SHARE_A_RUN
    return is_small and is_quiet


def _measure(stack: LocalStack, folder: Path, runs: int, say: Say) -> dict[str, Any]:
    stack.services["worker-parents"].kill()
    report: dict[str, Any] = {"runs": runs, "records": _RECORDS}
    store = LocalStore(folder / "store").create()
    now = SystemClock().now()
    url = str(folder / "store")
    specs = [spec_of(_RECORDS, now=now, run_id=f"waiting-{number}", store={"url": url}) for number in range(runs)]
    with open_client() as client:
        for pool in ("spot", "on-demand"):  # The attempts are there already; those that are submitted stay queued.
            client.update_work_pool(pool, WorkPoolUpdate(is_paused=True))
        say(f"writing {runs} logs")
        plans = {spec.run_id: write_log(store, spec, records=_RECORDS, now=now) for spec in specs}
        with _beating(store, plans), serving(stack, folder, runs) as serve:
            time.sleep(5)
            report["memory_bytes_without_runs"] = pss_bytes(family(serve.pid))
            begun = time.monotonic()
            for number, spec in enumerate(specs, 1):
                register_start(store, spec, clock=SystemClock())
                trigger(client, spec)
                if number % _STARTED_AT_ONCE == 0:  # A server on SQLite locks up when many runs start at once.
                    _wait_until_all_wait(store, specs[:number], serve, say)
            _wait_until_all_wait(store, specs, serve, say)
            report["start_seconds"] = round(time.monotonic() - begun, 1)
            say("waiting for the first plots")
            time.sleep(_SETTLE_SECONDS)
            say(f"measuring for {_MEASURED_SECONDS:.0f} s")
            report |= _figures(serve, runs)
            _wait_until_all_wait(store, specs, serve, say)  # None of them has ended meanwhile.
            report |= _end(serve, store)
    report["load_average"] = round(os.getloadavg()[0], 2)
    return report


def _figures(serve: psutil.Popen, runs: int) -> dict[str, Any]:
    wall, cpu = time.monotonic(), cpu_seconds(serve.pid)
    time.sleep(_MEASURED_SECONDS)
    share = (cpu_seconds(serve.pid) - cpu) / (time.monotonic() - wall)
    members = family(serve.pid)
    return {
        "processes": len(members),
        "threads": serve.num_threads(),
        "memory_bytes": pss_bytes(members),
        "resident_bytes": sum(psutil.Process(pid).memory_info().rss for pid in members),
        "cpu_share": round(share, 3),
        "cpu_share_a_run": round(share / runs, 5),
    }


def _end(serve: psutil.Popen, store: LocalStore) -> dict[str, Any]:
    """Time from SIGTERM to the end of the process, and the number of parents that could not leave in this time."""
    begun = time.monotonic()
    serve.terminate()
    serve.wait()
    left_behind = sum(not record.has_left for record in parents(store))
    return {"end_seconds": round(time.monotonic() - begun, 1), "parents_cut_off": left_behind}


def _wait_until_all_wait(store: LocalStore, specs: list[RunSpec], serve: psutil.Popen, say: Say) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while (found := _served_by(store, serve)) < len(specs):
        if time.monotonic() > give_up_at or serve.poll() is not None:
            what = f"{found} of {len(specs)} runs are served after {_START_SECONDS:.0f} s."
            raise OrchestratorError(what=what, fix="measure on a quiet machine, or with fewer runs.")
        say(f"{found} of {len(specs)} runs are served")
        time.sleep(1)


def _served_by(store: LocalStore, serve: psutil.Popen) -> int:
    return sum(record.process.split()[:1] == [str(serve.pid)] and not record.has_left for record in parents(store))


@contextmanager
def serving(stack: LocalStack, folder: Path, runs: int) -> Iterator[psutil.Popen]:
    """A `segue serve` for the parents of a stack, until the block ends."""
    command = [str(Path(sys.executable).with_name("segue")), "serve", "--runs", str(runs)]
    with (stack.logs / "serve.log").open("ab") as log:
        # A session of its own, by which all its processes are found.
        process = psutil.Popen(
            command,
            env=stack.environment(),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


@contextmanager
def _beating(store: LocalStore, plans: Mapping[str, SegmentPlan]) -> Iterator[None]:
    """Write the heartbeats of these runs' attempts until the block ends."""
    stop = threading.Event()

    def work() -> None:
        counter = 0
        while not stop.is_set():
            counter += 1
            due_at = time.monotonic() + HEARTBEAT_SECONDS
            for run_id, plan in plans.items():
                beat(store, plan, counter=counter, now=SystemClock().now(), run_id=run_id)
            stop.wait(due_at - time.monotonic())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
