"""Describes the state of a deployment's pool, as Prefect reports this state, and a run's requirements for its pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from segue.doctor.pools.segment_job import PoolJob

Limited = Literal["pool", "queue", "deployment"]
"""The objects in Prefect that may have a concurrency limit."""


@dataclass(frozen=True)
class PoolState:
    """The state of a deployment's work pool and work queue, as reported by the server."""

    deployment: str
    pool: str
    queue: str | None = None
    is_paused: bool = False
    is_queue_paused: bool = False
    is_queue_polled: bool = True
    """Whether a worker takes flow runs from the queue. The value is also True if no worker is online.

    A worker may take flow runs from only some queues of the pool.
    """
    limit: int | None = None
    """Number of flow runs that may run at the same time: the smallest limit of pool, queue and deployment.

    If there is no limit, the value is None.
    """
    pool_limit: int | None = None
    """The concurrency limit of the pool."""
    queue_limit: int | None = None
    """The concurrency limit of the queue."""
    workers: int | None = None
    """Number of online workers. If the pool needs no worker, the value is None."""
    known_workers: int | None = None
    """Number of all workers of the pool that the server knows, including offline workers.

    If the pool needs no worker, the value is None.
    """
    unknown_variables: tuple[str, ...] = ()
    """Job variables of the deployment that are missing in the pool's template."""
    job: PoolJob | None = None
    """The job of a segment on this pool. If the template does not describe the job, the value is None."""
    nodes: Sequence[Mapping[str, str]] | None = None
    """The labels of each node of the cluster. If the nodes are unknown, the value is None."""
    why_no_nodes: str = "its cluster was not asked"
    """The reason why the nodes of the cluster are unknown."""

    @property
    def named(self) -> str:
        return f"the pool {self.pool} of the deployment {self.deployment!r}"

    @property
    def limited(self) -> Limited:
        """Whether the pool, the queue or the deployment has the smallest limit."""
        if self.limit is not None and self.limit == self.pool_limit:
            return "pool"
        return "queue" if self.limit is not None and self.limit == self.queue_limit else "deployment"


def of_limit(owner: Limited, state: PoolState) -> tuple[str, str]:
    """Return the name of the pool, queue or deployment with the limit, and the command or setting that raises it."""
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
    """A run's requirements for its pools."""

    grace_seconds: float | None = None
    """The grace_seconds of the run. If no run is known, the value is None."""
    parent_pool: str | None = None
    """The pool on which the run's parent runs. If the pool is unknown, the value is None."""
    parent_queue: str | None = None
    """The queue in which the run's parent runs."""
    is_store_remote: bool | None = None
    """Whether the run's store is in a bucket. If no run is known, the value is None."""
    why_unknown: str = "no run is known"
