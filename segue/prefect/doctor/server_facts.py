"""Facts about the Prefect server and about a run's pools, for the doctor. Each fact is requested only once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import httpx
from prefect import Flow
from prefect.client.base import ServerType
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Completed

from segue.doctor.pools.pool_state import PoolState
from segue.doctor.server_judgement import Database
from segue.errors import OrchestratorError, QueueMissingError
from segue.prefect.api import quick_client
from segue.prefect.kubernetes_nodes import with_nodes
from segue.prefect.refused_requests import is_refused, repeat_refused_requests
from segue.prefect.run_pools import read_pool

PARENTS = "train/train"
_UNFINISHED = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]
_WRITES = "segue-doctor"
_WRITES_ASKED = 30
_BLOCK_TYPE = "Secret"
"""A block type that every server has."""


class Pools:
    """The pools of some deployments. They are read at the first use."""

    def __init__(self, segments: Sequence[str]) -> None:
        self._segments = tuple(segments)

    @cached_property
    def _read(self) -> dict[str, PoolState | OrchestratorError]:
        found: dict[str, PoolState | OrchestratorError] = {}
        with quick_client() as client:
            for name in dict.fromkeys((*self._segments, PARENTS)):
                try:
                    found[name] = read_pool(client, name)
                except OrchestratorError as error:
                    found[name] = error
        return found

    @property
    def names(self) -> list[str]:
        return list(self._read)

    @property
    def of_segments(self) -> list[PoolState]:
        """The existing pools of the segments."""
        return [found for name in self._segments if isinstance(found := self._read[name], PoolState)]

    @cached_property
    def with_nodes(self) -> list[PoolState]:
        """The pools of the segments. If a pool needs nodes with certain labels, it comes with the nodes of the
        cluster."""
        return with_nodes(self.of_segments)

    @property
    def of_parents(self) -> list[PoolState]:
        return [found for found in (self._read[PARENTS],) if isinstance(found, PoolState)]

    @property
    def without_queue(self) -> list[QueueMissingError]:
        return [error for error in self._read.values() if isinstance(error, QueueMissingError)]

    @property
    def missing(self) -> list[OrchestratorError]:
        """One error for each deployment that does not exist or has no pool."""
        errors = (error for error in self._read.values() if isinstance(error, OrchestratorError))
        return [error for error in errors if not isinstance(error, QueueMissingError)]


def database_of(client: SyncPrefectClient) -> Database | None:
    """The kind of the server's database; None for Prefect Cloud or if unknown.

    The API does not show the kind of the database, but a search for names reveals it. A backslash in a pattern is an
    escape on PostgreSQL and a plain character on SQLite (https://www.sqlite.org/lang_expr.html, "The LIKE, GLOB,
    REGEXP, MATCH operators").
    """
    if client.server_type is ServerType.CLOUD:
        return None
    if not _block_types_like(client, _BLOCK_TYPE):
        return None
    return Database.POSTGRESQL if _block_types_like(client, f"\\{_BLOCK_TYPE}") else Database.SQLITE


def refused_writes() -> tuple[int, int]:
    """The number of refused writes (HTTP 503) and the number of all writes. The writes are made while workers poll the
    server.

    The writes set labels of a new flow run. A worker makes the same write for each flow run that it takes. The new flow
    run is deleted at the end.
    """
    refused = 0

    def count(response: httpx.Response) -> None:
        nonlocal refused
        refused += is_refused(response)

    repeat_refused_requests()
    with get_client(httpx_settings={"event_hooks": {"response": [count]}}, sync_client=True) as client:
        flow = Flow(_nothing, name=_WRITES)
        run = client.create_flow_run(flow, name=_WRITES, state=Completed())
        refused = 0
        try:
            for number in range(_WRITES_ASKED):
                client.update_flow_run_labels(run.id, {"segue.doctor": number})
        finally:
            client.delete_flow(run.flow_id)  # This also deletes the flow run.
    return refused, _WRITES_ASKED


def _nothing() -> None:
    """The flow of the flow run that gets labels. This flow never runs."""


def open_parents(client: SyncPrefectClient) -> int:
    """Number of parents that have not ended."""
    flow, _, name = PARENTS.partition("/")
    return client.count_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
        deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[name])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED))),
    )


def _block_types_like(client: SyncPrefectClient, pattern: str) -> list[Any]:
    asked = {"block_types": {"name": {"like_": pattern}}}
    found: list[Any] = client.request("POST", "/block_types/filter", json=asked).json()
    return found
