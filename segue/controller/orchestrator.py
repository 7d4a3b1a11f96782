"""The interface between the controller and the orchestrator.

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
    """Starts attempts and standbys. Each has a handle, and the handle stays valid if the controller is restarted."""

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Start the attempt of a plan, if it was not started before. Return the handle of the attempt.

        Raises:
            OrchestratorError: the attempt cannot be started.
        """
        ...

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        """Start the attempt of a plan once more, beside the attempt's first start. Return the handle of the new start.

        The pool of the plan may differ from the pool of the first start.
        The same number always gives the same handle. The method returns None if this orchestrator has no other place
        for the attempt.

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

        Return None if there is no final state yet, or if the orchestrator does not answer.

        Raises:
            OrchestratorError: the orchestrator did not answer the submission at first, and then refused the submission.
        """
        ...

    def is_running(self, handle: str) -> bool:
        """Whether the attempt is known to run on a machine. The method must not block."""
        ...

    def starting_seconds(self, handle: str) -> float | None:
        """Return the seconds since a worker or a machine took the attempt.

        Return None if none has taken the attempt yet. The method must not block.
        """
        ...

    def flow_run_id(self, handle: str) -> str | None:
        """Return the id of the flow run, as in a claim.

        Return None if there is no flow run, or if its id is not known yet.
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
        """Return the reason why the pool could not start an attempt that has ended.

        Return None if the attempt was started, or if this is not known.
        """
        ...

    def was_cancelled(self, handle: str) -> bool:
        """Whether a person cancelled the attempt. The result is False if the orchestrator does not answer."""
        ...

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        """Cancel a start that has not claimed the attempt, with this reason.

        The reason None means that another start of the attempt came first. Failures are ignored.
        """
        ...

    def cancel_standby(self, handle: str, why: str) -> None:
        """Cancel a standby, which may have no process yet. Failures are ignored."""
        ...

    def mark_lost(self, handle: str, why: str) -> None:
        """If the orchestrator still shows a lost attempt as running, let it show the attempt as lost.

        Failures are ignored.
        """
        ...
