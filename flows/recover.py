"""Flow `recover`, run by a schedule: start the parents of open runs again that have died."""

from __future__ import annotations

import logging
from contextlib import chdir
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import ValidationError
from segue.tasks.parent_clock import clock_of, time_at
from segue.tasks.prefect_api import SILENCE
from segue.tasks.recovery import recover_run
from segue.tasks.retraining.recovery import is_slot, recover_slot
from segue.tasks.segment_states import settle_left

from segue.controller.recovery import OrphanWatch
from segue.errors import SegueError, SpecError
from segue.retraining.slots import store_of
from segue.retraining.spec import RetrainSpec
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import StoreGoneError

log = logging.getLogger(__name__)

_KNOWN_FOR = timedelta(days=30)
_MOST_FLOW_RUNS = 200
_LATE = timedelta(minutes=5)
"""Starts that were due longer ago pile up while the worker is away; each would do the same."""


@flow(name="recover", retries=0, validate_parameters=True, persist_result=False)
def recover(stores: list[StoreSpec] | None = None, *, take_over: bool = False) -> Any:
    """Find open runs that have no living parent, and start their parents again. Safe at any time, and beside itself.

    Without `stores` it looks into every store that a parent or a retraining of this Prefect server used in the last 30
    days. Runs that another server started are left to it, unless `take_over` is given.
    """
    due = flow_run.scheduled_start_time
    done, troubles = [], []
    with get_client(sync_client=True) as client:
        if due is not None and time_at(client) - due > _LATE:
            return Completed(message="nothing was looked at: this start is late, and a later one follows")
        for store in known_stores(client) if stores is None else stores:
            found, trouble = recover_store(client, store, take_over=take_over)
            done += found
            troubles += trouble
    text = "; ".join([*done, *troubles]) or "every open run has a living parent"
    return Failed(message=text) if troubles else Completed(message=text)


def recover_store(
    client: SyncPrefectClient, store: StoreSpec, *, take_over: bool = False
) -> tuple[list[str], list[str]]:
    """Recover the runs of one store; returns what was done, and what could not be done."""
    clock, done, troubles = clock_of(client), [], []
    try:
        opened = open_store(store)
        dead = OrphanWatch(opened, clock=clock).find()
    except StoreGoneError as error:
        return [str(error)], []  # It may have been deleted on purpose.
    except SegueError as error:
        return [], [str(error)]
    for record in dead:
        try:
            if is_slot(record):
                done.append(f"{record.run_id}: {recover_slot(client, store, record, take_over=take_over)}")
                continue
            runlog = log_in(opened, record.run_id, store, clock=clock).reload()
            what, _ = recover_run(client, runlog, record, clock=clock, take_over=take_over)
        except (SegueError, ObjectNotFound, *SILENCE) as error:
            troubles.append(f"{record.run_id}: {error}")
            continue
        log.info("run recovered run=%s what=%s", record.run_id, what)
        done.append(f"{record.run_id}: {what}")
    try:
        settled, unsettled = settle_left(client, opened, spec=store, clock=clock)
    except SILENCE as error:
        settled, unsettled = [], [f"the states of segments were not set from their logs: {error}"]
    return done + settled, troubles + unsettled


def known_stores(client: SyncPrefectClient) -> list[StoreSpec]:
    """The stores of this server's parents and retrainings, each once."""
    found: dict[str, StoreSpec] = {}
    for run in [*_flow_runs(client, "train"), *_flow_runs(client, "retrain")]:
        store = _store_of(client, run)
        if store is not None:
            found.setdefault(store.model_dump_json(), store)
    return list(found.values())


def _flow_runs(client: SyncPrefectClient, flow_name: str) -> list[FlowRun]:
    now = time_at(client)
    since = FlowRunFilterExpectedStartTime(after_=now - _KNOWN_FOR, before_=now)
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
        flow_run_filter=FlowRunFilter(expected_start_time=since),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_MOST_FLOW_RUNS,
    )


def _store_of(client: SyncPrefectClient, run: FlowRun) -> StoreSpec | None:
    """The store in a flow run's parameters; None where they were wrong, so that it was refused."""
    spec, file = run.parameters.get("spec"), run.parameters.get("file")
    try:
        if isinstance(file, str):
            with chdir(_folder_of(client, run)):
                return store_of(RetrainSpec.from_toml(Path(file)))
        return StoreSpec.model_validate(spec.get("store", {}) if isinstance(spec, dict) else None)
    except (ValidationError, SpecError, OSError):
        return None


def _folder_of(client: SyncPrefectClient, run: FlowRun) -> Path:
    """The folder in which the flow runs of a deployment start, if it names one."""
    try:
        deployment = client.read_deployment(run.deployment_id) if run.deployment_id is not None else None
    except ObjectNotFound:
        deployment = None
    return Path((deployment.job_variables or {}).get("working_dir") or ".") if deployment is not None else Path()
