"""The fleet: a Prefect, two pools with limits, one `segue serve` for all parents, and the results of the runs."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate

from benchmarks.common.memory import family, pss_bytes
from benchmarks.fleet.judge import Outcome, judge, slot_seconds
from benchmarks.fleet.store import served_s3
from benchmarks.waiting.served import serving
from segue.clock import SystemClock
from segue.controller.recovery import register_start
from segue.deployments.follow import open_client, trigger
from segue.deployments.local_stack.stack import LocalStack
from segue.errors import OrchestratorError
from segue.policy import clamp
from segue.policy.estimates import situation
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.stores import open_store

Say = Callable[[str], None]

_STEPS, _PAUSE_SECONDS = 400, 0.005
_STARTED_AT_ONCE = 10
_SLACK = 1.5
"""The deadline of all runs, as a multiple of the time that the machine needs for all runs with all slots in use."""
_LEAST_DEADLINE_SECONDS = 600.0
_SPOT_SHARE = 0.5
"""Share of the time that spot needs for all runs, after which a tight deadline makes waiting runs leave spot."""
_LOOK_SECONDS = 2.0
_REQUEST = re.compile(rb'"(GET|POST|PUT|PATCH|DELETE) ([^ "?]+)')


@dataclass(frozen=True)
class Options:
    """The options of the measurement."""

    runs: int
    spot_slots: int
    on_demand_slots: int
    database: str | None = None
    counts_requests: bool = False
    is_tight: bool = False
    """Whether the deadline is so near that spot alone cannot meet the deadline."""

    @property
    def slots(self) -> int:
        """Number of slots of both pools."""
        return self.spot_slots + self.on_demand_slots


def passed(report: Mapping[str, Any]) -> bool:
    """Whether all runs finished in time, and nothing was trained twice."""
    return bool(report["finished"] == report["runs"] and report["late"] == 0 and report["trained_twice"] == 0)


def measure(options: Options, *, say: Say) -> dict[str, Any]:
    """Start all runs at once, and wait for their ends.

    Raises:
        OrchestratorError: not all runs had ended an hour after their deadline.
    """
    variables = {"PREFECT_SERVER_LOGGING_LEVEL": "INFO"}  # The server then logs each request.
    if options.database is not None:
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = options.database
    with ExitStack() as stack, TemporaryDirectory(prefix="segue-fleet-") as folder:
        home = Path(folder)
        store: dict[str, Any] = {"url": str(home / "store")}
        if options.counts_requests:
            store = stack.enter_context(served_s3(home / "s3.log"))
            variables |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        open_store(RunSpec.model_validate({"run_id": "x", "recipe": "a:b", "steps": 1, "store": store}).store).check()
        prefect = LocalStack(home / "prefect", home=home, say=say, variables=variables, wanted_port=0)
        stack.callback(prefect.stop)
        prefect.start()
        with prefect.settings(), open_client() as client:
            return _measure(_World(prefect, client, home, store), options, say)


@dataclass(frozen=True)
class _World:
    prefect: LocalStack
    client: SyncPrefectClient
    home: Path
    store: dict[str, Any]

    def requests(self) -> tuple[int, int]:
        """Number of requests so far to the Prefect server, and to the store."""
        return _requests(self.prefect.logs / "server.log"), _requests(self.home / "s3.log")


def _measure(world: _World, options: Options, say: Say) -> dict[str, Any]:
    prefect, client, store = world.prefect, world.client, world.store
    prefect.services["worker-parents"].kill()
    client.update_work_pool("spot", WorkPoolUpdate(concurrency_limit=options.spot_slots))
    client.update_work_pool("on-demand", WorkPoolUpdate(concurrency_limit=options.on_demand_slots))
    with serving(prefect, world.home, max(options.runs, options.slots)) as serve:
        one = _spec("alone", store)
        alone = _seconds_of(client, [one], say)
        with_full_slots = _seconds_of(client, _specs_of_full_slots(options, store), say)
        begun_at, begun = SystemClock().now(), time.monotonic()
        deadline = begun_at + timedelta(seconds=_deadline_seconds(options, one, with_full_slots=with_full_slots))
        specs = [_spec(f"fleet-{number:03}", store, deadline=deadline) for number in range(options.runs)]
        before = world.requests()
        with _watching(lambda: pss_bytes(family(serve.pid))) as most:
            parents = [_started(client, spec, number, say) for number, spec in enumerate(specs, 1)]
            limit = deadline + timedelta(hours=1)
            _wait_for_all(client, parents, until=limit, say=say)
        seconds = time.monotonic() - begun
        after = world.requests()
        outcome: Outcome = judge(client, specs)
        return {
            "runs": options.runs,
            "slots": f"{options.spot_slots} spot, {options.on_demand_slots} on-demand",
            "database": "SQLite" if options.database is None else "PostgreSQL",
            "seconds_of_one_run_alone": round(alone, 1),
            "seconds_of_a_run_in_each_slot": round(with_full_slots, 1),
            "deadline_seconds": round((deadline - begun_at).total_seconds()),
            "seconds": round(seconds),
            **vars(outcome),
            "memory_of_all_parents_bytes": most[0],
            "memory_a_run_bytes": most[0] // options.runs,
            "api_requests_a_run": round((after[0] - before[0]) / options.runs),
            "store_requests_a_run": round((after[1] - before[1]) / options.runs) if options.counts_requests else None,
            "load_average": round(os.getloadavg()[0], 2),
        }


def _deadline_seconds(options: Options, one: RunSpec, *, with_full_slots: float) -> float:
    """Estimated time for all runs, from the measured time of one run for each slot, because there may be fewer cores
    than slots."""
    if not options.is_tight:
        needed = with_full_slots * options.runs / options.slots
        return max(_LEAST_DEADLINE_SECONDS, _SLACK * needed)
    on_spot = slot_seconds(one) * options.runs / options.spot_slots
    # The clamp lets an attempt wait for spot as long as more time than this is left.
    reserve = clamp.needed_for_spot_seconds(situation(one, History(), now=SystemClock().now()))
    return _SPOT_SHARE * on_spot + (reserve or 0.0)


def _specs_of_full_slots(options: Options, store: dict[str, Any]) -> list[RunSpec]:
    """Train one run for each slot, without a deadline."""
    spot = [_spec(f"spot-{number}", store) for number in range(options.spot_slots)]
    return spot + [
        _spec(f"on-demand-{number}", store, policy="on_demand_only") for number in range(options.on_demand_slots)
    ]


def _spec(run_id: str, store: dict[str, Any], *, deadline: datetime | None = None, policy: str = "plan") -> RunSpec:
    return RunSpec.model_validate(
        {
            "run_id": run_id,
            "recipe": "segue.testing.recipes:tiny",
            "config": {"pause_seconds": _PAUSE_SECONDS},
            "steps": _STEPS,
            "threads": 1,
            "deadline": deadline,
            "store": store,
            "checkpoints": {"every_steps": 100},
            "continuity": {"rehearsal": "off"},
            "policy": {"name": policy, "changeover_seconds": 20, "step_seconds": 2 * _PAUSE_SECONDS},
        }
    )


def _seconds_of(client: SyncPrefectClient, specs: list[RunSpec], say: Say) -> float:
    """Time of these runs together. The very first run also loads the files that all runs share."""
    begun = time.monotonic()
    parents = [_started(client, spec, number, say) for number, spec in enumerate(specs, 1)]
    _wait_for_all(client, parents, until=SystemClock().now() + timedelta(minutes=10), say=say)
    return time.monotonic() - begun


def _started(client: SyncPrefectClient, spec: RunSpec, number: int, say: Say) -> UUID:
    register_start(open_store(spec.store), spec, clock=SystemClock())
    if number % _STARTED_AT_ONCE == 0:
        say(f"{number} runs are started")
    return trigger(client, spec)


def _wait_for_all(client: SyncPrefectClient, parents: list[UUID], *, until: datetime, say: Say) -> None:
    waiting = set(parents)
    while waiting:
        if SystemClock().now() > until:
            what = f"{len(waiting)} of {len(parents)} runs have not ended."
            raise OrchestratorError(what=what, fix="measure on a quiet machine, or with fewer runs.")
        time.sleep(_LOOK_SECONDS)
        for parent in list(waiting):
            state = client.read_flow_run(parent).state
            if state is not None and state.is_final():
                waiting.discard(parent)
        say(f"{len(parents) - len(waiting)} of {len(parents)} runs have ended")


@contextmanager
def _watching(measured: Callable[[], int]) -> Iterator[list[int]]:
    """Largest value of a measure during the block, from samples at intervals."""
    most, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(_LOOK_SECONDS):
            most[0] = max(most[0], measured())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def _requests(log: Path) -> int:
    """Number of requests that a server has logged so far."""
    return len(_REQUEST.findall(log.read_bytes())) if log.exists() else 0
