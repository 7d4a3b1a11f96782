"""Sends the events of a model's slots, for automations: data refused, promoted, not promoted, and failed."""

from __future__ import annotations

from datetime import datetime

from segue.clock import SystemClock
from segue.prefect.api import SILENCE, own_flow_run_id, quick_client
from segue.prefect.ui.announcements import Announcer, Logger, model_resource_id
from segue.reports.run_events import Fact, RunEvent
from segue.retraining.history import Models
from segue.retraining.model_record import IN_WORDS, SlotOutcome
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


WAITING = "segue.model.waiting"


def announce(spec: RetrainSpec, models: Models, slot: datetime, *, log_id: str, logger: Logger) -> None:
    """Send one event about a slot that has ended or waits for a decision.

    If the event cannot be sent, the failure is only logged. The model's log also has the outcome of the slot.
    """
    event = event_of(spec, models, slot, now=SystemClock().now())
    identity = {"log_id": log_id, "flow_run_id": own_flow_run_id()}
    announcer = Announcer(spec.name, logger=logger, resource=model_resource_id(spec.name), **identity)  # type: ignore[arg-type]
    try:
        with quick_client() as client:
            announcer.announce(client, [event], now=event.at)
    except SILENCE as error:
        logger.warning("event not sent name=%s reason=%s", event.name, type(error).__name__)


def event_of(spec: RetrainSpec, models: Models, slot: datetime, *, now: datetime) -> RunEvent:
    """Return the event of a slot that has ended, or that waits for a decision."""
    known, run = models.slots[slot], run_id_of(spec, slot)
    facts: dict[str, Fact] = {"model": spec.name, "slot": slot.isoformat(), "version": known.version}
    facts |= {"in_service": models.in_service, "run": run}
    if known.end is not None:
        outcome = known.end.outcome
        sentence = f"{run}: {IN_WORDS[outcome]}; {known.end.why}"
        return RunEvent(EVENTS[outcome], f"{stamp_of(slot)}:{known.ends}", now, sentence, facts | {"outcome": outcome})
    assert known.decide_by is not None
    assert known.version is not None
    until = f"{known.decide_by.astimezone(spec.zone):%Y-%m-%d %H:%M %Z}"
    sentence = f"{run}: version {known.version} waits for a decision until {until}; {models.version(known.version).why}"
    return RunEvent(WAITING, f"{stamp_of(slot)}:waiting:{known.version}", now, sentence, facts)
