"""The tasks for slots that new or drifted data begins. The tasks find these slots, and start their flow runs."""

from __future__ import annotations

from datetime import datetime

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from segue.errors import OrchestratorError
from segue.prefect.slots.slot_starts import SlotStarter
from segue.retraining.models import ModelsLog
from segue.retraining.slots import store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.triggers.trigger_look import look, unstarted
from segue.stores import open_store


@task(name="look-for-triggers", retries=0, cache_policy=NO_CACHE)
def look_for_triggers(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Compare the files of the window and the data in service with the files and data of earlier slots. Return one line
    for each finding."""
    log = _log(spec)
    log.store.check()
    return look(spec, log, now=now).lines


@task(name="start-triggered", retries=0, cache_policy=NO_CACHE)
def start_triggered(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Start the flow runs of slots that were requested and have not begun. Return one line about each slot.

    Recovery does not see a flow run that ended before its first heartbeat. This task starts the slot's flow run again,
    at most five times. If this task crashes, the next check continues the work, because each start has an idempotency
    key.

    Raises:
        OrchestratorError: the retraining has no deployment, so the next look starts the flow runs; or the flow run of a
            slot ended five times, so the slot has failed.
    """
    log = _log(spec)
    waiting = unstarted(log.read(), now=now)
    if not waiting:
        return ()
    name = f"retrain/{spec.name}"
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(name)
        except ObjectNotFound:
            what = f"there is no deployment {name} on this Prefect server."
            raise OrchestratorError(what=what, fix="run `segue retrain deploy`.") from None
        starter = SlotStarter(client, deployment, spec, log, now=now)
        found = tuple(starter.start(trigger) for trigger in waiting)
    if starter.given_up:
        fix = "correct the cause, and start the slot: `segue retrain start --slot TIME`."
        raise OrchestratorError(what=f"{'; '.join(starter.given_up)}.", fix=fix)
    return found


def _log(spec: RetrainSpec) -> ModelsLog:
    place = store_of(spec)
    return ModelsLog(open_store(place), spec.name, spec=place)
