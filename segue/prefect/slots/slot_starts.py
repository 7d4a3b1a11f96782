"""Starts the flow runs of slots that new or drifted data began."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse

from segue.prefect.api import create_flow_run
from segue.prefect.state_words import in_words, is_by_a_person
from segue.retraining.model_record import SlotEnd, Trigger
from segue.retraining.models import ModelsLog
from segue.retraining.slots import heartbeat_of, run_id_of
from segue.retraining.spec import RetrainSpec
from segue.runlog.parents import read_parent
from segue.units import duration

_MOST_STARTS = 5
_FIRST_PAUSE_SECONDS = 60.0
"""Pause in seconds before the second start of a slot that has not begun.

Each further pause is four times as long. All pauses together take 85 minutes.
"""


class SlotStarter:
    """Starts the flow runs of requested slots, in one check."""

    def __init__(
        self,
        client: SyncPrefectClient,
        deployment: DeploymentResponse,
        spec: RetrainSpec,
        log: ModelsLog,
        *,
        now: datetime,
    ) -> None:
        self._client, self._deployment, self._spec, self._log, self._now = client, deployment, spec, log, now
        self.given_up: list[str] = []
        """Texts about slots that have failed, because their flow runs ended too often."""

    def start(self, trigger: Trigger) -> str:
        """Start the flow run of a slot. Do nothing if the flow run exists or the start is too early. Return a text
        about it.
        """
        run_id = run_id_of(self._spec, trigger.slot)
        starts = self._starts(run_id)
        newest = starts[0].state if starts else None
        if newest is None:
            self._create(trigger, starts)
            return f"started {run_id}"
        if not newest.is_final():
            return f"{run_id}: its flow run is {newest.type.value.lower()}"
        if trigger.slot in self._log.read().slots:
            return f"{run_id} has begun"
        if read_parent(self._log.store, heartbeat_of(self._spec.name, trigger.slot)) is not None:
            return f"{run_id} has begun; `recover` restarts its flow run if needed"
        if is_by_a_person(newest):
            self._log.end_slot(SlotEnd(slot=trigger.slot, outcome="cancelled", why="its flow run was cancelled"))
            return f"{run_id} is not started again: its flow run was cancelled"
        return self._start_again(trigger, starts, newest)

    def _start_again(self, trigger: Trigger, starts: Sequence[FlowRun], newest: State[Any]) -> str:
        run_id = run_id_of(self._spec, trigger.slot)
        why = f"before its slot began, its flow run ended as {in_words(newest)} ({newest.message or 'no message'})"
        if len(starts) >= _MOST_STARTS:
            why += f", the last of {len(starts)} starts"
            self._log.end_slot(SlotEnd(slot=trigger.slot, outcome="failed", why=why))
            self.given_up.append(f"{run_id} has failed: {why}")
            return self.given_up[-1]
        pause_seconds = _FIRST_PAUSE_SECONDS * 4.0 ** (len(starts) - 1)
        left_seconds = pause_seconds - (self._now - newest.timestamp).total_seconds()
        if left_seconds > 0:
            return f"{run_id}: {why}; next start in {duration(left_seconds)}"
        self._create(trigger, starts)
        return f"started {run_id} again: {why}"

    def _starts(self, run_id: str) -> Sequence[FlowRun]:
        """Return the flow runs that were created for a slot, the newest first."""
        wanted = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[self._deployment.id]),
            tags=FlowRunFilterTags(all_=["segue", run_id]),
        )
        found = self._client.read_flow_runs(flow_run_filter=wanted)
        return sorted(found, key=lambda run: run.created or datetime.min.replace(tzinfo=UTC), reverse=True)

    def _create(self, trigger: Trigger, starts: Sequence[FlowRun]) -> None:
        run_id = run_id_of(self._spec, trigger.slot)
        first, taken = f"{self._log.log_id}:{run_id}", {run.idempotency_key for run in starts}
        keys = (first, *(f"{first}:{number}" for number in range(1, len(starts) + 1)))
        create_flow_run(
            self._client,
            self._deployment.id,
            parameters=self._deployment.parameters | {"slot": trigger.slot.isoformat()},
            name=run_id,
            tags=["segue", run_id],
            # If checks run in parallel, they find the same starts, and create the same flow run.
            idempotency_key=next(key for key in keys if key not in taken),
        )
