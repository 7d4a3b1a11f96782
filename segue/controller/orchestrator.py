"""The orchestrator as the controller uses it: start attempts and standbys on pools, read their state, cancel them.

The run's log takes precedence over every answer of an orchestrator. Implementations are
`segue.prefect.prefect_orchestrator` (Prefect) and `segue.controller.local_run` (processes on this machine).
"""

from __future__ import annotations

from typing import Protocol

from segue.policy.queueing import Queues
from segue.records import SegmentPlan, StopReason
from segue.spec import RunSpec


class Orchestrator(Protocol):
    """Starts attempts and standbys. A handle names one of them, and stays valid when the controller restarts."""

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Start the attempt of a plan, unless it was started before; return its handle.

        Raises:
            OrchestratorError: it cannot be started.
        """
        ...

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        """Start the attempt of a plan once more, beside its first start; the handle of that start.

        The same number always gives the same handle. None if this orchestrator has no other place for it.

        Raises:
            OrchestratorError: it cannot be started.
        """
        ...

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        """Start a standby on a pool, or find the one of that name; None when the orchestrator does not answer."""
        ...

    def state(self, handle: str) -> str | None:
        """Name of the final state; None while there is none, or when the orchestrator does not answer.

        Raises:
            OrchestratorError: the orchestrator refused the submission after it had been silent.
        """
        ...

    def is_running(self, handle: str) -> bool:
        """Whether it has a machine and runs, as far as is known. Must not block."""
        ...

    def starting_seconds(self, handle: str) -> float | None:
        """How long ago a worker took it, or its machine began to run it; None: it waits for them. Must not block."""
        ...

    def flow_run_id(self, handle: str) -> str | None:
        """The id by which a claim names it; None if there is none, or it is not known yet."""
        ...

    def why_waiting(self, handle: str) -> str | None:
        """Why it does not start, as far as is known: its pool is paused, has no worker, ... Must not block."""
        ...

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        """The queues in which this spot attempt, or one on on-demand, would wait; None: not known. Must not block."""
        ...

    def refusal(self, handle: str) -> str | None:
        """Why its pool could not start it, after it has ended; None when it was started, or if that is not known."""
        ...

    def was_cancelled(self, handle: str) -> bool:
        """Whether a person cancelled it; False when the orchestrator does not answer."""
        ...

    def cancel(self, handle: str, why: str, *, reason: StopReason = StopReason.CANCELLED) -> None:
        """Cancel an attempt that has not started, for this reason. Best effort."""
        ...

    def cancel_standby(self, handle: str, why: str) -> None:
        """Cancel a standby, which may have no process yet. Best effort."""
        ...

    def mark_lost(self, handle: str, why: str) -> None:
        """Show a lost attempt as lost if the orchestrator still shows it as running. Best effort."""
        ...
