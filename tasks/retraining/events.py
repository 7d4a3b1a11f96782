"""Events of a model's slots, for automations: data refused, promoted, not promoted, failed."""

from __future__ import annotations

from uuid import UUID

from prefect.runtime import flow_run
from segue.tasks.announcements import Announcer, Logger, model_resource_id
from segue.tasks.prefect_api import SILENCE, quick_client

from segue.clock import SystemClock
from segue.reports.run_events import Fact, RunEvent
from segue.retraining.model_record import IN_WORDS, SlotEnd, SlotOutcome
from segue.retraining.models import Models
from segue.retraining.slots import run_id_of, stamp_of
from segue.retraining.spec import RetrainSpec

EVENTS: dict[SlotOutcome, str] = {
    "promoted": "segue.model.promoted",
    "not_promoted": "segue.model.not-promoted",
    "data_gate": "segue.data.refused",
    "no_data": "segue.data.missing",
    "failed": "segue.retrain.failed",
    "skipped": "segue.retrain.skipped",
    "superseded": "segue.retrain.superseded",
    "cancelled": "segue.retrain.cancelled",
}


def announce(spec: RetrainSpec, models: Models, end: SlotEnd, *, log_id: str, logger: Logger) -> None:
    """Send the event of a slot's end, once. Best effort: the model's log has it, whatever Prefect does."""
    now = SystemClock().now()
    known = models.slots[end.slot]
    sentence = f"{run_id_of(spec, end.slot)}: {IN_WORDS[end.outcome]}; {end.why}"
    facts: dict[str, Fact] = {
        "model": spec.name,
        "slot": end.slot.isoformat(),
        "outcome": end.outcome,
        "version": known.version,
    }
    facts |= {"in_service": models.in_service, "run": run_id_of(spec, end.slot)}
    event = RunEvent(EVENTS[end.outcome], f"{stamp_of(end.slot)}:{known.ends}", now, sentence, facts)
    identity = {"log_id": log_id, "flow_run_id": UUID(str(flow_run.id)) if flow_run.id else None}
    announcer = Announcer(spec.name, logger=logger, resource=model_resource_id(spec.name), **identity)  # type: ignore[arg-type]
    try:
        with quick_client() as client:
            announcer.announce(client, [event], now=now)
    except SILENCE as error:
        logger.warning("event not sent name=%s reason=%s", event.name, type(error).__name__)
