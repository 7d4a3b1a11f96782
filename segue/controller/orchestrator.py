"""Defines the interface between the controller and the orchestrator.

The controller starts attempts and standbys, reads their state, and cancels them. The run's log takes precedence over
every answer of an orchestrator. The implementations are `segue.prefect.prefect_orchestrator` (Prefect) and
`segue.controller.local_run` (processes on this machine).
"""

from __future__ import annotations

from typing import Protocol

from segue.policy.queueing import Queues
from segue.records import SegmentPlan, StopReason
from segue.spec import RunSpec


class Orchestrator(Protocol):
    """Starts attempts and standbys, and returns their handles. A handle stays valid if the controller restarts."""

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Start the attempt of a plan, or find the earlier start of the attempt. Return the handle.

        Raises:
            OrchestratorError: the attempt cannot be started.
        """
        ...

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        """Start the attempt of a plan again, beside its first start. Return the handle of the new start.

        The pool of the plan may differ from the pool of the first start. A repeated call with the same number returns
        the same handle. The method returns None if the orchestrator has no other capacity for the attempt.

        Raises:
            OrchestratorError: the attempt cannot be started.
        """
        ...

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        """Start a standby on a pool, or find the standby with this name.

        Return None if the orchestrator does not answer.
        """
        ...

    def state(self, handle: str) -> str | None:
        """Return the name of the final state.

        Return None if the attempt has no final state yet, or if the orchestrator does not answer.

        Raises:
            OrchestratorError: the orchestrator first did not answer the submission, and later refused it.
        """
        ...

    def is_running(self, handle: str) -> bool:
        """Whether the attempt is known to run on a machine. The method must not block."""
        ...

    def starting_seconds(self, handle: str) -> float | None:
        """Return the seconds since a worker or a machine took the attempt.

        Return None if no worker or machine has taken the attempt yet. The method must not block.
        """
        ...

    def flow_run_id(self, handle: str) -> str | None:
        """Return the id of the flow run, as in a claim.

        Return None if the attempt has no flow run, or if the id is not known yet.
        """
        ...

    def why_waiting(self, handle: str) -> str | None:
        """Return the reason why the attempt does not start, for example a paused pool.

        Return None if the reason is not known. The method must not block.
        """
        ...

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        """Return the queues for this spot attempt and for an attempt on on-demand.

        Return None if the queues are not known. The method must not block.
        """
        ...

    def refusal(self, handle: str) -> str | None:
        """Return the reason why the pool never started an attempt that has ended now.

        Return None if the pool started the attempt, or if the orchestrator does not know.
        """
        ...

    def was_cancelled(self, handle: str) -> bool:
        """Whether a person cancelled the attempt. The result is False if the orchestrator does not answer."""
        ...

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        """Cancel a start that has not claimed the attempt.

        If `reason` is None, another start of the attempt came first. The method ignores failures.
        """
        ...

    def cancel_standby(self, handle: str, why: str) -> None:
        """Cancel a standby, which may have no process yet. The method ignores failures."""
        ...

    def mark_lost(self, handle: str, why: str) -> None:
        """Show a lost attempt as lost, if the orchestrator still shows the attempt as running.

        The method ignores failures.
        """
        ...
