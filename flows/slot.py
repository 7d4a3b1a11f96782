"""Runs one slot of a scheduled retraining, from the choice of its data to the version that it trains."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from segue.controller.recovery import ParentHeartbeat
from segue.errors import NoDataError, ParentAliveError, SameDataError, SegueError, SlotEndedError, StoreError
from segue.flows.train import train
from segue.prefect.api import is_cancelled, own_flow_run_id
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.recovery.dead_parents import known_server_id
from segue.prefect.recovery.recovery_watch import RecoveryWatch
from segue.prefect.slots.events import announce
from segue.prefect.slots.questions import Questions
from segue.prefect.slots.slot_ticks import begins_for_data
from segue.prefect.slots.turns import Turns, stop_run
from segue.prefect.state_words import Word, has_reached_goal, state_with, word_of
from segue.retraining.history import SlotState
from segue.retraining.model_record import SlotEnd, SlotOutcome, SlotStart
from segue.retraining.models import ModelsLog, require_new_data
from segue.retraining.slots import heartbeat_of, run_id_of, run_of, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import changes_since
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.runlog.parents import read_parent
from segue.spec import RunSpec
from segue.stores import open_store
from segue.tasks.curve import check_curve
from segue.tasks.retraining import (
    begin_with_version,
    check_data,
    check_functions,
    choose_window,
    evaluate_candidate,
    mirror_registry,
    publish_data_check,
    publish_model,
)

Logger = logging.Logger | logging.LoggerAdapter[Any]


class _LeftWaitingError(Exception):
    """The candidate of an earlier slot waits for a decision, which the flow run of the earlier slot requests."""


class SlotRunner:
    """Runs the slots of one retraining. A dead slot can continue, because the model's log contains every step."""

    def __init__(self, spec: RetrainSpec, *, folder: Path, logger: Logger) -> None:
        """`folder` is the folder of retrain.toml."""
        self._spec, self._folder, self._logger = spec, folder, logger
        self._clock = parent_clock()
        place = store_of(spec)
        self._store = open_store(place)
        self.log = ModelsLog(self._store, spec.name, spec=place, clock=self._clock)
        self.turns = Turns(spec, self._store, self.log, clock=self._clock, logger=logger)
        self._questions = Questions(spec, self.log, clock=self._clock, logger=logger, show=self._publish)
        self._own: datetime | None = None  # The slot of this flow run, which may run earlier slots first.

    def require_store(self) -> None:
        """Check that the store can be written.

        Raises:
            StoreUnreachableError: the store cannot be written.
        """
        self._store.check()

    def run(self, slot: datetime, *, after: Sequence[datetime] = ()) -> State[Any]:
        """Wait for the turn of a slot, and then run the slot to its end. If it already has a candidate, do not run it.

        The slots in `after` were missed, so they run before this slot.

        Raises:
            ParentAliveError: another flow run runs this slot.
            StoreError: the store cannot be used. The slot stays open, and recovery starts it again.
        """
        self._own = slot
        return self._run_as_parent(slot, after=after)

    def _run_as_parent(self, slot: datetime, *, after: Sequence[datetime] = ()) -> State[Any]:
        heartbeat = self._heartbeat(slot)
        as_parent(heartbeat.take_over, what="heartbeat of the slot")
        watch = RecoveryWatch(
            store_of(self._spec),
            heartbeat,
            clock=self._clock,
            logger=self._logger,
            flow_run_id=own_flow_run_id(),
        )
        with heartbeat.beating(), watch.watching():
            try:
                for earlier in after:
                    self._adopt(earlier)
                state = self._run_or_fail(slot)
            except BaseException:
                self._end_if_cancelled(slot)
                raise
        if not state.is_crashed():
            heartbeat.close()
        return state

    def leave_out(self, slot: datetime, *, why: str) -> State[Any]:
        """Record the end of a slot without running it."""
        self._logger.warning("slot left out slot=%s reason=%s", slot.isoformat(), why)
        return self._end(slot, "skipped", why, Word.SKIPPED)

    def _run_or_fail(self, slot: datetime) -> State[Any]:
        try:
            return self._run(slot)
        except StoreError:
            raise
        except SegueError as error:
            return self._end(slot, "failed", str(error))

    def _run(self, slot: datetime) -> State[Any]:
        known = self.log.read().slots.get(slot)
        if known is not None and known.decide_by is not None and (known.is_waiting or known.is_done):
            return self._decided(slot)
        if known is not None and known.is_done:
            return _done(known, run_id_of(self._spec, slot))
        has_begun = known is not None and known.is_open and known.start is not None
        why = self.turns.wait(slot, has_begun=has_begun, adopt=self._adopt)
        if why is not None:
            return self._end(slot, "skipped", why, Word.SKIPPED)
        try:
            start = self._begun_before(known) or self._planned(slot)
        except NoDataError as error:
            return self._end(slot, "no_data", str(error), Word.NO_DATA)
        except SameDataError as error:
            return self._end(slot, "skipped", str(error), Word.SKIPPED)
        if start.run is None:
            refused = [finding.sentence for finding in start.gate.findings if not finding.is_warning]
            return self._end(slot, "data_gate", "; ".join(refused[:3]), Word.DATA_GATE)
        try:
            return self._trained(start, start.run)
        except SlotEndedError:
            return _superseded(start.run.run_id)

    def _begun_before(self, known: SlotState | None) -> SlotStart | None:
        """Return the recorded start of a slot. The slot continues this start, with the same window and run.

        If the slot has no start, or ended without a checkpoint, return None. It then begins from scratch.
        """
        if known is None or known.start is None or known.start.run is None:
            return None
        start, run = known.start, known.start.run
        if known.is_open:
            return start
        if not self._history(run).committed_step:
            return None
        return as_parent(lambda: self.log.open_slot(start), what="slot")

    def _planned(self, slot: datetime) -> SlotStart:
        """Choose and check the window of the slot. Then record the start of the slot, before capacity is bought.

        Raises:
            NoDataError: there are no files for the window.
            SameDataError: new data started the slot, but the data has not changed.
            SegueError: the window could not be read or checked.
        """
        spec = self._spec
        check_functions(spec)
        window, local = choose_window(spec, slot)
        models = self.log.read()
        is_for_new_data = begins_for_data(spec, models, slot)
        if is_for_new_data:  # Checked again when the slot begins.
            require_new_data(models, window, slot=slot)
        before = models.window_before(slot)
        gate, docs = check_data(spec, slot, window, local, folder=self._folder, before=before)
        is_accepted = gate.outcome != "failed"
        planned = SlotStart(
            slot=slot,
            window=window,
            changes=changes_since(before.window, window) if before is not None else (),
            gate=gate,
            docs=docs,
            run=run_of(spec, slot, window, now=self._clock.now()) if is_accepted else None,
            start_version=models.in_service if is_accepted and spec.start_from == "in_service" else None,
        )
        start = as_parent(lambda: self.log.open_slot(planned, is_for_new_data=is_for_new_data), what="slot")
        for change in start.changes:
            self._logger.warning("data changed: %s", change)
        publish_data_check(spec, start, return_state=True)  # If the artifact fails, the slot continues.
        return start

    def _trained(self, start: SlotStart, planned: RunSpec) -> State[Any]:
        history = self._history(planned)
        run = self._in_time(planned, history)
        if start.start_version is not None and not history.has_trained:
            begin_with_version(self._spec, start.model_copy(update={"run": run}))
        # If a person or a later slot stops the run after this moment, this flow must not undo that stop.
        asked_at = self._history(run).next_slot
        if self._is_superseded(start.slot):
            return _superseded(run.run_id)
        state = self._train(run, asked_at=asked_at, accept_drift=not history.committed_step)
        if self._is_superseded(start.slot):
            return _superseded(run.run_id)
        if not has_reached_goal(state):
            return self._ended_without_goal(start.slot, state)
        check_curve(run, return_state=True)  # The findings are in an artifact. The slot continues.
        models = evaluate_candidate(self._spec, start.model_copy(update={"run": run}))
        slot_state = models.slots[start.slot]
        assert slot_state.version is not None
        if slot_state.decide_by is not None:
            return self._decided(start.slot)
        version = models.version(slot_state.version)
        if self._spec.publish.mlflow is not None:
            mirror_registry(self._spec, return_state=True)  # If the registry fails, the slot continues.
        outcome: SlotOutcome = "promoted" if version.is_promoted else "not_promoted"
        why = f"version {slot_state.version}: {version.why}"
        return self._end(start.slot, outcome, why, Word.PROMOTED if version.is_promoted else Word.NOT_PROMOTED)

    def _decided(self, slot: datetime) -> State[Any]:
        """Suspend the flow run until a person decides about the slot's candidate, then end the slot.

        Raises:
            _LeftWaitingError: this flow run belongs to a later slot, which does not wait for the decision.
            Recovery starts a flow run that asks for the decision.
        """
        if slot != self._own and as_parent(self.log.read, what="log of the model").slots[slot].is_waiting:
            self._publish(slot)
            raise _LeftWaitingError
        state = self._questions.answered(slot)
        if self._spec.publish.mlflow is not None:
            mirror_registry(self._spec, return_state=True)
        self._publish(slot)
        return _done(state, run_id_of(self._spec, slot))

    def _in_time(self, run: RunSpec, history: History) -> RunSpec:
        """Return the run spec. If the deadline passed before the run began, remove the deadline."""
        if history.spec is not None:
            return run.model_copy(update={"deadline": history.spec.deadline})
        is_past = run.deadline is not None and run.deadline <= self._clock.now()
        return run.model_copy(update={"deadline": None}) if is_past else run

    def _train(self, run: RunSpec, *, asked_at: int, accept_drift: bool) -> State[Any]:
        while True:
            state: Any = train(run, accept_drift=accept_drift, requested_at_slot=asked_at, return_state=True)
            if has_reached_goal(state) or state.is_crashed():
                return state  # type: ignore[no-any-return]
            # If the store still has a parent record of the run, the run has another parent, or will have one. This
            # happens after an outage of the store, or if recovery was faster. This slot waits for the other parent, and
            # uses the result of the other parent.
            if self._history(run).is_over or read_parent(self._store, run.run_id) is None:
                if word_of(state) is not Word.DUPLICATE:
                    return state  # type: ignore[no-any-return]
                continue
            self._logger.info("waiting for another parent of the run run=%s", run.run_id)
            while (record := read_parent(self._store, run.run_id)) is not None and not record.has_left:
                self._clock.sleep(self.turns.look_seconds)

    def _history(self, run: RunSpec) -> History:
        return as_parent(lambda: read_history(open_log(run).reload()), what="log of the run")

    def _ended_without_goal(self, slot: datetime, state: State[Any]) -> State[Any]:
        if not state.is_crashed():  # A crashed slot stays open for recovery.
            outcome: SlotOutcome = "cancelled" if state.is_cancelled() else "failed"
            self._finish(slot, outcome, state.message or state.name or outcome)
        # The flow returns a new state. If it returned the state of another flow run, Prefect would show "1/1 states
        # failed".
        return State(type=state.type, message=state.message)

    def _adopt(self, slot: datetime) -> None:
        """Run an earlier slot that was missed, or whose flow run has died, before this slot."""
        self._logger.warning("running an earlier slot first slot=%s", slot.isoformat())
        try:
            self._run_as_parent(slot)
        except ParentAliveError:
            return  # Another flow run has it.
        except _LeftWaitingError:
            self._logger.info("the earlier slot's candidate waits for a decision; the next slot begins")
        except StoreError:
            raise
        except Exception as error:
            # Catch any exception, because the failure of an earlier slot must not also end this slot.
            self._logger.warning("the earlier slot could not be run, continuing with this slot reason=%s", error)
            self._finish(slot, "failed", f"{type(error).__name__}: {error}")

    def _end_if_cancelled(self, slot: datetime) -> None:
        """If a person cancelled the flow run, stop the slot's run at a checkpoint and end the slot."""
        flow_run_id = own_flow_run_id()
        if flow_run_id is None or not is_cancelled(flow_run_id):
            return
        why = "its flow run was cancelled"
        known = self.log.read().slots.get(slot)
        if known is not None and known.start is not None and known.start.run is not None:
            stop_run(known.start, why=why)
        self._finish(slot, "cancelled", why)

    def _is_superseded(self, slot: datetime) -> bool:
        end = self.log.read().slots[slot].end
        return end is not None and end.outcome == "superseded"

    def _end(self, slot: datetime, outcome: SlotOutcome, why: str, word: Word | None = None) -> State[Any]:
        """End a slot, and return a state with the name `word` for its flow run. Without `word`, return a failed
        state."""
        self._finish(slot, outcome, why)
        message = f"{run_id_of(self._spec, slot)}: {why}"
        return state_with(word, message) if word is not None else Failed(message=message)

    def _finish(self, slot: datetime, outcome: SlotOutcome, why: str) -> None:
        as_parent(lambda: self.log.end_slot(SlotEnd(slot=slot, outcome=outcome, why=why)), what="slot")
        self._publish(slot)  # Another process may have ended the slot.

    def _publish(self, slot: datetime) -> None:
        """Publish the pages of a slot that has ended or waits for a decision, from the model's log."""
        models = as_parent(self.log.read, what="log of the model")
        publish_model(self._spec, models.slots[slot].version, return_state=True)
        announce(self._spec, models, slot, log_id=self.log.log_id, logger=self._logger)

    def _heartbeat(self, slot: datetime) -> ParentHeartbeat:
        run = run_of(self._spec, slot, None, now=self._clock.now())
        name = heartbeat_of(self._spec.name, slot)
        facts: dict[str, Any] = {"flow_run_id": str(flow_run.id) if flow_run.id else None}
        facts["server_id"] = known_server_id()
        if self._own is not None and slot != self._own:
            facts["adopted_by"] = heartbeat_of(self._spec.name, self._own)
        return ParentHeartbeat(self._store, run.model_copy(update={"run_id": name}), clock=self._clock, **facts)


def _done(known: SlotState, name: str) -> State[Any]:
    assert known.end is not None
    is_promoted = known.end.outcome == "promoted"
    which = f"version {known.version}: " if known.decide_by is not None else ""
    message = f"{name} is done: {which}{known.end.why}"
    return state_with(Word.PROMOTED if is_promoted else Word.NOT_PROMOTED, message)


def _superseded(name: str) -> State[Any]:
    return state_with(Word.SUPERSEDED, f"{name}: a later slot took its place; its run ended at a checkpoint")
