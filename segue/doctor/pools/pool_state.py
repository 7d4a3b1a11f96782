"""Describes the state of a deployment's pool, as Prefect reports it, and the needs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from segue.doctor.pools.segment_job import PoolJob

Limited = Literal["pool", "queue", "deployment"]
"""The parts that may have a concurrency limit."""


@dataclass(frozen=True)
class PoolState:
    """The state of a deployment's work pool and work queue, as the server reports it."""

    deployment: str
    pool: str
    queue: str | None = None
    is_paused: bool = False
    is_queue_paused: bool = False
    is_queue_polled: bool = True
    """Whether a worker takes flow runs from the queue, or no worker is online.

    Workers may be limited to some queues.
    """
    limit: int | None = None
    """Number of flow runs that may run at the same time: the smallest limit of pool, queue and deployment.

    The value None means no limit.
    """
    pool_limit: int | None = None
    """The limit of the pool alone."""
    queue_limit: int | None = None
    """The limit of the queue alone."""
    workers: int | None = None
    """Number of online workers. The value is None for a pool that needs no worker."""
    known_workers: int | None = None
    """Number of all workers of the pool that the server knows, including offline workers.

    The value is None for a pool that needs no worker.
    """
    unknown_variables: tuple[str, ...] = ()
    """Job variables of the deployment that are missing in the pool's template."""
    job: PoolJob | None = None
    """The job of a segment on this pool. The value is None if the template does not describe the job."""
    nodes: Sequence[Mapping[str, str]] | None = None
    """The labels of each node of the cluster. The value is None if the nodes are unknown."""
    why_no_nodes: str = "its cluster was not asked"
    """The reason why the nodes are not known."""

    @property
    def named(self) -> str:
        return f"the pool {self.pool} of the deployment {self.deployment!r}"

    @property
    def limited(self) -> Limited:
        """The part that has the smallest limit."""
        if self.limit is not None and self.limit == self.pool_limit:
            return "pool"
        return "queue" if self.limit is not None and self.limit == self.queue_limit else "deployment"


def of_limit(owner: Limited, state: PoolState) -> tuple[str, str]:
    """Return the name of the part that has a limit, and the command or setting that raises this limit."""
    match owner:
        case "pool":
            return f"pool {state.pool}", f"`prefect work-pool set-concurrency-limit {state.pool} N`"
        case "queue":
            command = f"`prefect work-queue set-concurrency-limit {state.queue} N --pool {state.pool}`"
            return f"queue {state.queue} of the pool {state.pool}", command
        case "deployment":
            return f"deployment {state.deployment!r}", "`concurrency_limit` in prefect.yaml, and deploy again"


@dataclass(frozen=True)
class Needs:
    """The requirements of a run for its pools."""

    grace_seconds: float | None = None
    """The grace_seconds of the run. The value is None if no run is known."""
    parent_pool: str | None = None
    """The pool on which the run's parent runs. The value is None if the pool is unknown."""
    parent_queue: str | None = None
    """The queue in which the run's parent runs."""
    is_store_remote: bool | None = None
    """Whether the run's store is in a bucket. The value is None if no run is known."""
    why_unknown: str = "no run is known"
