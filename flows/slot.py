"""One slot of a scheduled retraining, from its data to the version it trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from segue.flows.train import train
from segue.tasks.curve import check_curve
from segue.tasks.parent_clock import as_parent, parent_clock
from segue.tasks.prefect_api import DUPLICATE, is_cancelled
from segue.tasks.recovery import known_server_id
from segue.tasks.retraining.events import announce
from segue.tasks.retraining.slot import (
    begin_with_version,
    check_data,
    choose_window,
    evaluate_candidate,
    mirror_registry,
    publish_data_check,
    publish_model,
)

from segue.controller.recovery import Life, OrphanWatch, ParentHeartbeat
from segue.controller.steps import request_stop
from segue.errors import NoDataError, ParentAliveError, RunOverError, SegueError, StoreError
from segue.retraining.model_record import SlotEnd, SlotOutcome, SlotStart
from segue.retraining.models import ModelsLog, SlotState
from segue.retraining.slots import heartbeat_of, model_and_slot_of, overlap_of, run_id_of, run_of, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import changes_since
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.runlog.parents import parents, read_parent
from segue.spec import RunSpec
from segue.stores import open_store

Logger = logging.Logger | logging.LoggerAdapter[Any]

PROMOTED, NOT_PROMOTED, SKIPPED, SUPERSEDED = "Promoted", "NotPromoted", "Skipped", "Superseded"
DATA_GATE, NO_DATA = "DataGate", "NoData"
"""Names of the states of slots."""

_LOOK_SECONDS, _REMOTE_LOOK_SECONDS = 1.0, 5.0


class SlotRunner:
    """Runs slots of one retraining. Every step of a slot is in the model's log, so a slot that died goes on."""

    def __init__(self, spec: RetrainSpec, *, folder: Path, logger: Logger) -> None:
        """`folder` holds retrain.toml."""
        self._spec, self._folder, self._logger = spec, folder, logger
        self._clock = parent_clock()
        self._store = open_store(store_of(spec))
        self.log = ModelsLog(self._store, spec.name, clock=self._clock)

    def require_store(self) -> None:
        """Check that the store can be written.

        Raises:
            StoreUnreachableError: it cannot.
        """
        self._store.check()

    def run(self, slot: datetime) -> State[Any]:
        """Run a slot to its end, when its turn has come; a slot that has trained a candidate is left as it is.

        Raises:
            ParentAliveError: another flow run has this slot.
            SegueError: the slot could not be run; what it has done so far is kept.
        """
        heartbeat = self._heartbeat(slot)
        heartbeat.take_over()
        try:
            with heartbeat.beating():
                state = self._run_or_fail(slot)
        except BaseException:
            if self._end_if_cancelled(slot):
                heartbeat.close()
            raise
        if not state.is_crashed():
            heartbeat.close()
        return state

    def _run_or_fail(self, slot: datetime) -> State[Any]:
        try:
            return self._run(slot)
        except StoreError:
            raise
        except SegueError as error:
            return self._end(slot, "failed", str(error), Failed, name="Failed")

    def _run(self, slot: datetime) -> State[Any]:
        known = self.log.read().slots.get(slot)
        if known is not None and known.is_done:
            return _done(known, run_id_of(self._spec, slot))
        skipped = self._wait_for_turn(slot)
        if skipped is not None:
            return skipped
        try:
            start = self._begun_before(known) or self._planned(slot)
        except NoDataError as error:
            return self._end(slot, "no_data", str(error), Failed, name=NO_DATA)
        if start.run is None:
            why = "; ".join(finding.sentence for finding in start.gate.findings[:3] if not finding.is_warning)
            return self._end(slot, "data_gate", why, Failed, name=DATA_GATE)
        return self._trained(start)

    def _begun_before(self, known: SlotState | None) -> SlotStart | None:
        """The recorded start of a slot that goes on with it, with the same window and the same run; None without."""
        if known is None or known.start is None or known.start.run is None:
            return None
        start = known.start
        return start if known.is_open else as_parent(lambda: self.log.open_slot(start), what="slot")

    def _planned(self, slot: datetime) -> SlotStart:
        """The slot's window, checked; recorded before anything is bought.

        Raises:
            NoDataError: there is no window.
            SegueError: it could not be read or checked.
        """
        spec = self._spec
        window, local = choose_window(spec, slot)
        models = self.log.read()
        before = models.window_before(slot)
        gate, docs = check_data(spec, slot, window, local, folder=self._folder, before=before)
        is_accepted = gate.outcome != "failed"
        start = SlotStart(
            slot=slot,
            window=window,
            changes=changes_since(before.window, window) if before is not None else (),
            gate=gate,
            docs=docs,
            run=run_of(spec, slot, window, now=self._clock.now()) if is_accepted else None,
            start_version=models.in_service if is_accepted and spec.start_from == "in_service" else None,
        )
        start = as_parent(lambda: self.log.open_slot(start), what="slot")
        for change in start.changes:
            self._logger.warning("data changed: %s", change)
        publish_data_check(spec, start, return_state=True)  # A failed artifact must not fail the slot.
        return start

    def _trained(self, start: SlotStart) -> State[Any]:
        assert start.run is not None
        run = start.run
        if start.start_version is not None:
            begin_with_version(self._spec, start)
        if self._is_superseded(start.slot):
            return _superseded(run.run_id)
        if not read_history(open_log(run).reload()).next_slot and run.deadline and run.deadline <= self._clock.now():
            run = run.model_copy(update={"deadline": None})  # It passed before the run began, which costs least then.
        state = self._train(run)
        if self._is_superseded(start.slot):
            return _superseded(run.run_id)
        if not state.is_completed():
            return self._ended_without_goal(start.slot, state)
        check_curve(run, return_state=True)  # Its findings are in its artifact; they do not fail the slot.
        models = evaluate_candidate(self._spec, start)
        slot_state = models.slots[start.slot]
        assert slot_state.version is not None
        version = models.version(slot_state.version)
        publish_model(self._spec, slot_state.version, return_state=True)
        if self._spec.publish.mlflow is not None:
            mirror_registry(self._spec, return_state=True)  # A registry that is away must not fail the slot.
        outcome: SlotOutcome = "promoted" if version.is_promoted else "not_promoted"
        why = f"version {slot_state.version}: {version.why}"
        return self._end(start.slot, outcome, why, Completed, name=PROMOTED if version.is_promoted else NOT_PROMOTED)

    def _train(self, run: RunSpec) -> State[Any]:
        while True:
            state: Any = train(run, return_state=True)
            if state.name != DUPLICATE:
                return state  # type: ignore[no-any-return]
            # Recovery started a parent of its own: wait until it has ended, then take its result.
            self._logger.info("waiting for the run's other parent run=%s", run.run_id)
            while (record := read_parent(self._store, run.run_id)) is not None and not record.has_left:
                self._clock.sleep(self._look_seconds)

    def _ended_without_goal(self, slot: datetime, state: State[Any]) -> State[Any]:
        if not state.is_crashed():  # Otherwise the slot stays open: recovery starts it again.
            outcome: SlotOutcome = "cancelled" if state.is_cancelled() else "failed"
            self._finish(slot, outcome, state.message or state.name or outcome)
        # A new one: Prefect would sum up the state of another flow run as "1/1 states failed".
        return State(type=state.type, name=state.name, message=state.message)

    def _wait_for_turn(self, slot: datetime) -> State[Any] | None:
        """Wait for earlier slots as the spec says. The state of this one if it is left out."""
        watch, said = OrphanWatch(self._store, clock=self._clock), ""
        while True:
            lives = self._lives_before(slot, watch)
            for other in [other for other, life in lives.items() if life is Life.DEAD]:
                self._adopt(other)
            if Life.UNKNOWN not in lives.values():
                overlap = overlap_of(self._spec, slot, [other for other, life in lives.items() if life is Life.ALIVE])
                if overlap.action == "go":
                    return None
                if overlap.action == "skip":
                    return self._end(slot, "skipped", overlap.why, Completed, name=SKIPPED)
                if overlap.action == "supersede":
                    self._supersede(lives, why=overlap.why)
                if overlap.why != said:
                    self._logger.info("%s", overlap.why)
                    said = overlap.why
            self._clock.sleep(self._look_seconds)

    def _lives_before(self, slot: datetime, watch: OrphanWatch) -> dict[datetime, Life]:
        """The earlier slots of this model that are being run, and whether the flow run of each is alive."""
        found = {}
        for record in parents(self._store):
            known = model_and_slot_of(record.run_id)
            if known is not None and known[0] == self._spec.name and known[1] < slot:
                found[known[1]] = watch.judge(record)
        return found

    def _adopt(self, slot: datetime) -> None:
        """Run an earlier slot whose flow run has died, before this one."""
        self._logger.warning("going on with an earlier slot whose flow run has died slot=%s", slot.isoformat())
        try:
            self.run(slot)
        except ParentAliveError:
            return  # Recovery was faster.
        except StoreError:
            raise
        except SegueError as error:
            self._logger.warning("the earlier slot could not be run reason=%s", error)
            self._finish(slot, "failed", str(error))

    def _supersede(self, slots: Iterable[datetime], *, why: str) -> None:
        for state in (self.log.read().slots.get(slot) for slot in slots):
            if state is None or not state.is_open or state.start is None:
                continue  # Its data is being checked; asked again in a moment.
            as_parent(lambda slot=state.slot: self._finish(slot, "superseded", why), what="slot")  # type: ignore[misc]
            if state.start.run is not None:
                self._stop_run(state.start, why=why)

    def _stop_run(self, start: SlotStart, *, why: str) -> None:
        assert start.run is not None
        runlog = open_log(start.run).reload()
        if runlog.next_slot:
            try:
                request_stop(runlog, reason=why)
            except RunOverError:
                return  # It has ended already.

    def _end_if_cancelled(self, slot: datetime) -> bool:
        """After a cancellation by a person: stop the run at a checkpoint, and end the slot. Whether it was that."""
        if not flow_run.id or not is_cancelled(UUID(str(flow_run.id))):
            return False
        why = "its flow run was cancelled"
        known = self.log.read().slots.get(slot)
        if known is not None and known.start is not None and known.start.run is not None:
            self._stop_run(known.start, why=why)
        self._finish(slot, "cancelled", why)
        return True

    def _is_superseded(self, slot: datetime) -> bool:
        end = self.log.read().slots[slot].end
        return end is not None and end.outcome == "superseded"

    def _end(
        self, slot: datetime, outcome: SlotOutcome, why: str, made: Callable[..., State[Any]], *, name: str
    ) -> State[Any]:
        self._finish(slot, outcome, why)
        return made(name=name, message=f"{run_id_of(self._spec, slot)}: {why}")

    def _finish(self, slot: datetime, outcome: SlotOutcome, why: str) -> None:
        end = SlotEnd(slot=slot, outcome=outcome, why=why)
        models = as_parent(lambda: self.log.end_slot(end), what="slot")
        publish_model(self._spec, return_state=True)
        announce(self._spec, models, end, log_id=self.log.log_id, logger=self._logger)

    def _heartbeat(self, slot: datetime) -> ParentHeartbeat:
        run = run_of(self._spec, slot, None, now=self._clock.now())
        name = heartbeat_of(self._spec.name, slot)
        facts: dict[str, Any] = {"flow_run_id": str(flow_run.id) if flow_run.id else None}
        facts["server_id"] = known_server_id()
        return ParentHeartbeat(self._store, run.model_copy(update={"run_id": name}), clock=self._clock, **facts)

    @property
    def _look_seconds(self) -> float:
        return _REMOTE_LOOK_SECONDS if self._store.is_remote else _LOOK_SECONDS


def _done(known: SlotState, name: str) -> State[Any]:
    assert known.end is not None
    is_promoted = known.end.outcome == "promoted"
    message = f"{name} is done: {known.end.why}"
    return Completed(name=PROMOTED if is_promoted else NOT_PROMOTED, message=message)


def _superseded(name: str) -> State[Any]:
    return Cancelled(name=SUPERSEDED, message=f"{name}: a later slot took its place; its run ended at a checkpoint")
