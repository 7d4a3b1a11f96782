"""A retraining that looks for data, on a folder with monthly files."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from segue.prefect.slots.slot_ticks import begins_for_data
from segue.retraining.gate.profile import profile_of
from segue.retraining.gate.record import GateResult
from segue.retraining.history import Models
from segue.retraining.model_record import Artifact, Candidate, SlotEnd, SlotStart
from segue.retraining.models import require_new_data
from segue.retraining.slots import run_of
from segue.retraining.triggers.trigger_look import Look, look
from segue.retraining.window import window_of
from segue.stores import open_store
from tests.retraining.monthly import Monthly, slot_of_month

START = slot_of_month(4)


class Watched:
    """A folder of months that is looked at, with a clock that the test sets."""

    def __init__(self, monthly: Monthly) -> None:
        self.monthly, self.now = monthly, START
        open_store(monthly.store_folder).check()

    def look(self, *, after_minutes: float = 0) -> Look:
        self.now += timedelta(minutes=after_minutes)
        return look(self.monthly.spec, self.monthly.log, now=self.now)

    @property
    def models(self) -> Models:
        return self.monthly.models

    def open_slot(self, slot: datetime) -> SlotStart:
        """What a flow run records of a slot's beginning, in short.

        Raises:
            SameDataError: it is there for new data, and there is none.
        """
        import pandas as pd

        spec, log = self.monthly.spec, self.monthly.log
        window, local = window_of(spec, slot)
        is_for_new_data = begins_for_data(spec, self.models, slot)
        if is_for_new_data:
            require_new_data(self.models, window, slot=slot)
        frame = pd.concat([pd.read_parquet(path) for path in local.values()])
        profiles = {str(name): profile_of(frame[name]) for name in frame}
        gate = GateResult(outcome="passed", expectations=1, rows=len(frame), profiles=profiles)
        start = SlotStart(slot=slot, window=window, gate=gate, run=run_of(spec, slot, window, now=slot))
        return log.open_slot(start, is_for_new_data=is_for_new_data)

    def run_slot(self, slot: datetime, *, outcome: str = "promoted") -> None:
        """What a flow run of a slot records, in short.

        Raises:
            SameDataError: it is there for new data, and there is none.
        """
        start, log = self.open_slot(slot), self.monthly.log
        if outcome == "promoted":
            log.add(
                Candidate(
                    slot=slot,
                    run_id=start.run.run_id,
                    step=1,
                    attempt_id="seg000-a1-e1",
                    weights=Artifact(key="weights", sha256="0" * 64, size_bytes=1),
                    compared_with=self.models.in_service,
                    is_promoted=True,
                    why="better",
                )
            )
        log.end_slot(SlotEnd(slot=slot, outcome=outcome, why=outcome))


@pytest.fixture
def monthly(tmp_path) -> Monthly:
    made = Monthly(tmp_path / "points", trigger={"arrival": {}})
    made.write(1, 2, 3)
    return made


@pytest.fixture
def watched(monthly) -> Watched:
    return Watched(monthly)
