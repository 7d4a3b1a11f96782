"""Makes the checks of `segue doctor` that need a Prefect server. The values for the checks are requested only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
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
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed

from segue.clock import Clock
from segue.credentials import masked
from segue.doctor.check import Item, Result, ok, refused, worst
from segue.doctor.pools.job_judgement import kept_seconds
from segue.doctor.pools.judgement import JUDGES, judge
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.server_judgement import (
    Database,
    judge_database,
    judge_recovery,
    judge_refusals,
    judge_sqlalchemy,
    judge_verifications,
    judge_version,
)
from segue.doctor.subject import Subject
from segue.errors import OrchestratorError, QueueMissingError
from segue.prefect.api import SILENCE, quick_client, refusal
from segue.prefect.kubernetes_nodes import with_nodes
from segue.prefect.refused_requests import is_refused, repeat_refused_requests
from segue.prefect.run_pools import is_verification_limited, read_pool, recovery_of, server_version
from segue.spec.pool_prices import PoolSpec

_SERVER = "prefect.server"
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


def items(subject: Subject) -> list[Item]:
    """Return the checks of the server of PREFECT_API_URL, and of the run's pools on this server."""
    pools = Pools((subject.spec.pools if subject.spec is not None else PoolSpec()).deployments)
    needs = Needs(
        grace_seconds=subject.spec.grace_seconds if subject.spec is not None else None,
        is_store_remote=subject.store.is_remote if subject.spec is not None else None,
        why_unknown=subject.why_no_spec,
    )
    return [
        Item(_SERVER, _answered(server)),
        _asked("prefect.version", lambda client: judge_version(server_version(client))),
        _asked("prefect.database", database),
        Item("prefect.refusals", _answered(refusals), (_SERVER,)),
        Item("prefect.sqlalchemy", lambda: judge_sqlalchemy(version("sqlalchemy"))),
        Item("prefect.deployments", _answered(partial(deployments, pools)), (_SERVER,)),
        _asked("prefect.recover", partial(recovery, clock=subject.clock)),
        _asked("prefect.verify-resume", lambda client: judge_verifications(is_verification_limited(client))),
        *(Item(name, _answered(partial(of_pools, name, subject, pools, needs)), (_SERVER,)) for name in JUDGES),
    ]


def server() -> Result:
    """Check that the server answers and gives access. A request to the health endpoint is not enough, because it
    succeeds without credentials.
    """
    with quick_client() as client:
        problem = client.api_healthcheck()
        if problem is not None:
            return refused(refusal(problem))
        client.read_work_pools(limit=1)
    return ok(f"{masked(str(PREFECT_API_URL.value()))} answers")


def database(client: SyncPrefectClient) -> Result:
    return judge_database(database_of(client), open_parents=open_parents(client))


def refusals() -> Result:
    refused, asked = refused_writes()
    return judge_refusals(refused, of=asked)


def recovery(client: SyncPrefectClient, *, clock: Clock) -> Result:
    return judge_recovery(recovery_of(client, now=clock.now()))


def deployments(pools: Pools) -> Result:
    """Check that the deployments of the run and of its parent exist."""
    if pools.missing:
        return worst([refused(error) for error in pools.missing])
    return ok(f"{', '.join(pools.names)} exist")


def of_pools(name: str, subject: Subject, pools: Pools, needs: Needs) -> Result:
    """Make one check for the pools of the run, and for the pool of the run's parent if the check applies to parents."""
    if name == "pool.queue" and pools.without_queue:
        return worst([refused(error) for error in pools.without_queue])
    parents = pools.of_parents
    if parents:
        needs = replace(needs, parent_pool=parents[0].pool, parent_queue=parents[0].queue)
    # Only one check needs the nodes. If a cluster does not answer, it must not block the other checks.
    segments = pools.with_nodes if name == "pool.nodes" else pools.of_segments
    if name == "pool.grace-period":
        given = [seconds for state in segments if (seconds := kept_seconds(state)) is not None]
        subject.pool_grace_seconds = min(given, default=None)
    return judge(name, segments, parents, needs)


def _asked(name: str, look: Callable[[SyncPrefectClient], Result]) -> Item:
    def ask() -> Result:
        with quick_client() as client:
            return look(client)

    return Item(name, _answered(ask), (_SERVER,))


def _answered(look: Callable[[], Result]) -> Callable[[], Result]:
    """Wrap a check, so that a request without an answer gives a failed result instead of an exception."""

    def ask() -> Result:
        try:
            return look()
        except SILENCE as error:
            return refused(refusal(error))

    return ask


class Pools:
    """The pools of some deployments. The pools are read at the first use."""

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
        """The pools of the segments. If a pool needs nodes with certain labels, its state contains the nodes of the
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
    """Return the kind of the server's database. Return None for Prefect Cloud, or if the kind is unknown.

    The API does not show the kind of the database, but a search for names reveals it. In a pattern, a backslash is an
    escape on PostgreSQL and a plain character on SQLite (https://www.sqlite.org/lang_expr.html, "The LIKE, GLOB,
    REGEXP, MATCH operators").
    """
    if client.server_type is ServerType.CLOUD:
        return None
    if not _block_types_like(client, _BLOCK_TYPE):
        return None
    return Database.POSTGRESQL if _block_types_like(client, f"\\{_BLOCK_TYPE}") else Database.SQLITE


def refused_writes() -> tuple[int, int]:
    """Return the number of refused writes (HTTP 503) and the number of all writes, while workers poll the server.

    Each write sets labels of a new flow run, as a worker does for each flow run that it takes. The new flow run is
    deleted at the end.
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
    """Act as the flow of the flow run that gets labels. This flow never runs."""


def open_parents(client: SyncPrefectClient) -> int:
    """Return the number of parents that have not ended."""
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
