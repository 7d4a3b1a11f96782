"""The interface between controller and orchestrator: start attempts and standbys, read their state, cancel them.

The run's log takes precedence over every answer of an orchestrator. Implementations are
`segue.prefect.prefect_orchestrator` (Prefect) and `segue.controller.local_run` (processes on this machine).
"""

from __future__ import annotations

from typing import Protocol

from segue.policy.queueing import Queues
from segue.records import SegmentPlan, StopReason
from segue.spec import RunSpec


class Orchestrator(Protocol):
    """Starts attempts and standbys; each has a handle, which stays valid if the controller is restarted."""

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Start the attempt of a plan, if it was not started before; return its handle.

        Raises:
            OrchestratorError: the attempt cannot be started.
        """
        ...

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        """Start the attempt of a plan once more, beside its first start; return the handle of the new start.

        The same number always gives the same handle. None if this orchestrator has no other place for the attempt.

        Raises:
            OrchestratorError: the attempt cannot be started.
        """
        ...

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        """Start a standby on a pool, or find the standby of that name; None if the orchestrator does not answer."""
        ...

    def state(self, handle: str) -> str | None:
        """Name of the final state; None if there is none yet, or if the orchestrator does not answer.

        Raises:
            OrchestratorError: the orchestrator did not answer the submission at first, and then refused it.
        """
        ...

    def is_running(self, handle: str) -> bool:
        """Whether the attempt is known to run on a machine; must not block."""
        ...

    def starting_seconds(self, handle: str) -> float | None:
        """Seconds since a worker or a machine took the attempt; None if none has taken it yet. Must not block."""
        ...

    def flow_run_id(self, handle: str) -> str | None:
        """The id of the flow run, as in a claim; None if there is no flow run, or its id is not known yet."""
        ...

    def why_waiting(self, handle: str) -> str | None:
        """The reason why the attempt does not start, such as a paused pool; None if it is not known. Must not block."""
        ...

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        """The queues for this spot attempt and for an attempt on on-demand; None if not known. Must not block."""
        ...

    def refusal(self, handle: str) -> str | None:
        """Why the pool could not start an attempt that has ended; None if it was started, or if not known."""
        ...

    def was_cancelled(self, handle: str) -> bool:
        """Whether a person cancelled the attempt; False if the orchestrator does not answer."""
        ...

    def cancel(self, handle: str, why: str, *, reason: StopReason = StopReason.CANCELLED) -> None:
        """Cancel an attempt that has not started, giving this reason; failures are ignored."""
        ...

    def cancel_standby(self, handle: str, why: str) -> None:
        """Cancel a standby, which may have no process yet; failures are ignored."""
        ...

    def mark_lost(self, handle: str, why: str) -> None:
        """If the orchestrator still shows a lost attempt as running, show it as lost; failures are ignored."""
        ...
