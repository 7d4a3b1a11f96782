"""Decides in which order the started slots of a model run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from segue.clock import Clock
from segue.controller.recovery import Life, OrphanWatch
from segue.controller.steps import request_stop
from segue.errors import RunOverError
from segue.prefect.ui.announcements import Logger
from segue.records import ParentRecord
from segue.retraining.model_record import SlotEnd, SlotStart
from segue.retraining.models import ModelsLog
from segue.retraining.slots import model_and_slot_of, overlap_of
from segue.retraining.spec import RetrainSpec
from segue.runlog.open import open_log
from segue.runlog.parents import parents, remove_parent
from segue.stores.base import Store

LOOK_SECONDS, REMOTE_LOOK_SECONDS = 1.0, 5.0


class _Other(NamedTuple):
    """An earlier slot that has not ended."""

    record: ParentRecord
    life: Life


class Turns:
    """Decides what a slot does with earlier slots that have not ended: wait for them, run them or replace them."""

    def __init__(self, spec: RetrainSpec, store: Store, log: ModelsLog, *, clock: Clock, logger: Logger) -> None:
        self._spec, self._store, self._log = spec, store, log
        self._clock, self._logger = clock, logger
        self._watch = OrphanWatch(store, clock=clock)

    def living(self) -> set[datetime]:
        """Return the slots of this model that have a heartbeat record, even if their flow runs have died."""
        return {slot for slot, _ in self._records()}

    def wait(self, slot: datetime, *, has_begun: bool, adopt: Callable[[datetime], None]) -> str | None:
        """Wait for the turn of a slot, by the rule of `overlap`. If the rule skips the slot, return the reason.

        The rule never skips a slot that has begun. `adopt` runs an earlier slot whose flow run has died.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used.
        """
        said = ""
        while True:
            others = {other: _Other(record, self._watch.judge(record)) for other, record in self._unfinished(slot)}
            for other, found in others.items():
                if found.life is Life.DEAD:
                    self._settle(other, found.record, adopt)
            lives = {found.life for found in others.values()}
            if Life.UNKNOWN not in lives:
                alive = [other for other, found in others.items() if found.life is Life.ALIVE]
                overlap = overlap_of(self._spec, slot, alive)
                if overlap.action == "go":
                    if Life.DEAD not in lives:
                        return None
                    continue
                if overlap.action == "skip" and not has_begun:
                    return overlap.why
                if overlap.action == "supersede":
                    self._supersede(alive, why=overlap.why)
                if overlap.why != said:
                    self._logger.info("%s", overlap.why)
                    said = overlap.why
            self._clock.sleep(self.look_seconds)

    @property
    def look_seconds(self) -> float:
        """Seconds between two checks of the store."""
        return REMOTE_LOOK_SECONDS if self._store.is_remote else LOOK_SECONDS

    def _unfinished(self, slot: datetime) -> list[tuple[datetime, ParentRecord]]:
        """Return the earlier slots that have not ended, without slots that only wait for a person's decision."""
        found = self._records(before=slot)
        slots = self._log.read().slots if found else {}
        return [(other, record) for other, record in found if other not in slots or slots[other].decide_by is None]

    def _records(self, *, before: datetime | None = None) -> list[tuple[datetime, ParentRecord]]:
        found = []
        for record in parents(self._store):
            known = model_and_slot_of(record.run_id)
            if known is not None and known[0] == self._spec.name and (before is None or known[1] < before):
                found.append((known[1], record))
        return found

    def _settle(self, slot: datetime, record: ParentRecord, adopt: Callable[[datetime], None]) -> None:
        """Run an earlier slot whose flow run has died, if the slot has not ended and no later slot replaces it."""
        state = self._log.read().slots.get(slot)
        if self._spec.overlap == "supersede" and (state is None or state.is_open):
            self._log.end_slot(SlotEnd(slot=slot, outcome="superseded", why="its flow run died, and a later slot came"))
            state = self._log.read().slots[slot]
        if state is None or state.is_open:
            adopt(slot)
            return
        if state.start is not None and state.start.run is not None and not state.is_done:
            stop_run(state.start, why=state.end.why if state.end is not None else "")
        remove_parent(self._store, record)

    def _supersede(self, slots: Iterable[datetime], *, why: str) -> None:
        """End earlier slots, and stop their runs. Call this method repeatedly, because a run may begin between two
        calls.
        """
        for state in (self._log.read().slots.get(slot) for slot in slots):
            if state is None or state.start is None or state.is_done:
                continue  # Its data is being checked, or it ends by itself. The next call checks it again.
            if state.is_open:
                self._log.end_slot(SlotEnd(slot=state.slot, outcome="superseded", why=why))
            if state.start.run is not None:
                stop_run(state.start, why=why)


def stop_run(start: SlotStart, *, why: str) -> None:
    """Stop the run of a slot at a checkpoint, if the run has begun and has not ended. A repeated call is safe.

    Raises:
        StoreReadError, StoreWriteError: a retry is safe.
    """
    assert start.run is not None
    runlog = open_log(start.run).reload()
    if runlog.next_slot:
        with suppress(RunOverError):
            request_stop(runlog, reason=why)
