"""What a controller asks of an orchestrator: start attempts and standbys on pools, look at them, take them back.

None of its answers is trusted over the run's log. Prefect implements it (`segue.tasks.prefect_orchestrator`), and so do
processes on this machine (`segue.controller.local_run`).
"""

from __future__ import annotations

from typing import Protocol

from segue.records import SegmentPlan
from segue.spec import RunSpec


class Orchestrator(Protocol):
    """Starts attempts and standbys. A handle names one of them, and survives the process that was given it."""

    def require_pools(self, spec: RunSpec) -> None:
        """Refuse pools that are not there, before anything is started.

        Raises:
            OrchestratorError: a pool, or its deployment, does not exist.
        """
        ...

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Start the attempt of a plan; the handle of the one that was started before, if there is one.

        Raises:
            OrchestratorError: it cannot be started.
        """
        ...

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        """Start a standby on a pool, or find the one of that name; None when the orchestrator does not answer."""
        ...

    def state(self, handle: str) -> str | None:
        """The name of its final state; None while it has none, or the orchestrator does not answer."""
        ...

    def cancel(self, handle: str, why: str) -> None:
        """Take back an attempt that has not started. Best effort."""
        ...

    def cancel_standby(self, handle: str, why: str) -> None:
        """Take back a standby, which may have no process that could answer. Best effort."""
        ...

    def mark_lost(self, handle: str, why: str) -> None:
        """Show people that it is gone, where the orchestrator still shows it as running. Best effort."""
        ...
