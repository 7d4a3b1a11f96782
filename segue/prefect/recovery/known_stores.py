"""Lists the stores of the runs on a Prefect server, from one Variable per store and from parameters of flow runs.

Parents keep the Variable of their store up to date. If a server loses its database, a parent writes the Variable again
within a minute. A store has no Variable if its parents died too early or have an older version. Segue then learns of
the store from the parameters of flow runs.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import chdir, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import FlowRun, Variable
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from pydantic import ValidationError

from segue.clock import Clock
from segue.errors import SpecError
from segue.retraining.slots import store_of
from segue.retraining.spec import RetrainSpec
from segue.spec import StoreSpec

PREFIX = "segue_store_"
_READ_UNTIL = "segue_stores_read_until"
"""Name of the Variable with the time up to which flow runs were searched for stores."""
_KNOWN_FOR = timedelta(days=30)
"""Time after which segue forgets a store that no parent has used."""
_TOUCHED_EVERY = timedelta(days=1)
_OVERLAP = timedelta(hours=1)
"""Overlap of two searches. A search begins this much earlier than the newest known flow run."""
_SOON = timedelta(minutes=1)
"""Tolerance for comparisons with the server's time. The `Date` header of an answer is in whole seconds, and on a busy
server it may be some seconds old."""
_PAGE = 200
"""Number of rows in one request, which is the server's limit."""


def remember(client: SyncPrefectClient, store: StoreSpec, *, known: Variable | None, now: datetime) -> None:
    """Create or update the store's Variable on the server. `known` is the existing Variable. `now` is the server's
    time.

    Raises:
        httpx.HTTPError, PrefectHTTPStatusError: a retry is safe.
    """
    name, value = variable_of(store), store.model_dump(mode="json")
    if known is None:
        with suppress(ObjectAlreadyExists):  # Another parent was faster.
            client.create_variable(VariableCreate(name=name, value=value, tags=["segue"]))
    elif known.updated is None or now - known.updated > _TOUCHED_EVERY:
        with suppress(ObjectNotFound):
            client.update_variable(VariableUpdate(name=name, value=value))


def variable_of(store: StoreSpec) -> str:
    """Return the name of a store's Variable."""
    return PREFIX + hashlib.sha256(store.model_dump_json().encode()).hexdigest()[:24]


class StoreKeeper:
    """Keeps the Variables of this process's stores up to date. All parents in this process share one request for each
    store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_at: dict[str, float] = {}

    def keep(self, client: SyncPrefectClient, store: StoreSpec, *, clock: Clock, period_seconds: float) -> None:
        """Update the Variable of a store. If a parent of this process updated the Variable less than half a period ago,
        do nothing.

        Raises:
            httpx.HTTPError, PrefectHTTPStatusError: a retry is safe.
        """
        name = f"{client.api_url} {variable_of(store)}"
        with self._lock:
            before = self._looked_at.get(name)
            if before is not None and clock.monotonic() - before < period_seconds / 2:
                return
        found, now = _variables(client, variable_of(store), clock=clock)
        remember(client, store, known=found[0] if found else None, now=now)
        with self._lock:
            self._looked_at[name] = clock.monotonic()


KEEPER = StoreKeeper()
"""The StoreKeeper of this process."""


def known_stores(client: SyncPrefectClient, *, clock: Clock) -> list[StoreSpec]:
    """Return the stores of this server's parents and retrainings, each store once. Forget stores that no parent uses.

    Raises:
        httpx.HTTPError, PrefectHTTPStatusError: a request to the server failed.
    """
    variables, now = _variables(client, PREFIX, clock=clock)
    found: dict[str, StoreSpec] = {}
    for variable in variables:
        if variable.updated is not None and now - variable.updated > _KNOWN_FOR:
            client.delete_variable_by_name(variable.name)
            continue
        with suppress(ValidationError):  # A newer segue wrote the Variable.
            store = StoreSpec.model_validate(variable.value)
            found[variable_of(store)] = store
    for store in _in_flow_runs(client, now=now, clock=clock):
        if found.setdefault(variable_of(store), store) is store:
            remember(client, store, known=None, now=now)
    return list(found.values())


def _in_flow_runs(client: SyncPrefectClient, *, now: datetime, clock: Clock) -> Iterator[StoreSpec]:
    """Yield the stores in the parameters of all flow runs that segue has not read before."""
    marks, _ = _variables(client, _READ_UNTIL, clock=clock)
    until = _moment(marks[0].value, now=now) if marks else None
    since = until - _OVERLAP if until is not None else now - _KNOWN_FOR
    newest = until
    for flow_name in ("train", "retrain"):
        for run in _flow_runs(client, flow_name, since=since, until=now + _SOON):
            store = _store_in(client, run)
            if store is not None:
                yield store
            # A waiting flow run may begin long after it was due.
            if run.expected_start_time is not None and run.state is not None and not run.state.is_scheduled():
                newest = max(newest or run.expected_start_time, run.expected_start_time)
    if newest is not None and (until is None or newest - until > _OVERLAP):
        _write(client, _READ_UNTIL, newest.isoformat(), is_there=bool(marks))


def _moment(value: Any, *, now: datetime) -> datetime | None:
    """Return the time in a Variable. Return None if the Variable has no time, or a time more than a minute in the
    future."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None and found <= now + _SOON else None


def _write(client: SyncPrefectClient, name: str, value: str, *, is_there: bool) -> None:
    with suppress(ObjectAlreadyExists, ObjectNotFound):  # The next check does it.
        if is_there:
            client.update_variable(VariableUpdate(name=name, value=value))
        else:
            client.create_variable(VariableCreate(name=name, value=value, tags=["segue"]))


def _flow_runs(client: SyncPrefectClient, flow_name: str, *, since: datetime, until: datetime) -> Iterator[FlowRun]:
    due = FlowRunFilterExpectedStartTime(after_=since, before_=until)
    offset = 0
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
            flow_run_filter=FlowRunFilter(expected_start_time=due),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=_PAGE,
            offset=offset,
        )
        yield from page
        if len(page) < _PAGE:
            return
        offset += len(page)


def _variables(client: SyncPrefectClient, name: str, *, clock: Clock) -> tuple[list[Variable], datetime]:
    """Return the Variables whose names begin with `name`, and the server's time."""
    found: list[Variable] = []
    while True:
        wanted = {"variables": {"name": {"like_": name}}, "limit": _PAGE, "offset": len(found)}
        answer = client.request("POST", "/variables/filter", json=wanted)
        page = Variable.model_validate_list(answer.json())
        found += page
        if len(page) < _PAGE:
            return [one for one in found if one.name.startswith(name)], _time_of(answer) or clock.now()


def _time_of(answer: httpx.Response) -> datetime | None:
    """Return the date in the header of the answer, which comes from the server's clock. If there is no date, return
    None."""
    try:
        found = parsedate_to_datetime(answer.headers["date"])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _store_in(client: SyncPrefectClient, run: FlowRun) -> StoreSpec | None:
    """Return the store in a flow run's parameters. Return None if the parameters are not valid."""
    spec, file = run.parameters.get("spec"), run.parameters.get("file")
    try:
        if isinstance(file, str):
            with chdir(_folder_of(client, run)):
                return store_of(RetrainSpec.from_toml(Path(file)))
        return StoreSpec.model_validate(spec.get("store", {}) if isinstance(spec, dict) else None)
    except (ValidationError, SpecError, OSError):
        return None


def _folder_of(client: SyncPrefectClient, run: FlowRun) -> Path:
    """Return the working folder of a deployment's flow runs. If the deployment sets no folder, return the current
    one."""
    try:
        deployment = client.read_deployment(run.deployment_id) if run.deployment_id is not None else None
    except ObjectNotFound:
        deployment = None
    return Path((deployment.job_variables or {}).get("working_dir") or ".") if deployment is not None else Path()
