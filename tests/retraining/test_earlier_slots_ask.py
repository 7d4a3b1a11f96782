"""A flow run that runs earlier slots before its own asks about its own candidate. Only training is made up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from prefect.states import Completed

from segue.clock import SystemClock
from segue.flows import slot as slots
from segue.flows.slot import SlotRunner
from segue.prefect.slots import questions
from segue.prefect.slots.questions import PromotionAnswer, _Given
from segue.retraining.model_record import SlotStart
from segue.retraining.models import ModelsLog
from segue.retraining.slots import heartbeat_of, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.version_files import put_artifact
from segue.retraining.window import window_of
from segue.runlog.parents import parents, read_parent
from segue.stores import open_store
from tests.retraining.monthly import Monthly, slot_of_month
from tests.retraining.test_models import candidate
from tests.retraining.test_promotion import PASSED

A, B, C = (slot_of_month(month) for month in (4, 5, 6))


class Suspended(BaseException):
    """Prefect ends the process of a flow run that it suspends."""


class FlowRun:
    """The flow run of slot C, which a person may answer."""

    def __init__(self, spec: RetrainSpec, folder) -> None:
        self.spec, self.folder = spec, folder
        self.better = {A, B, C}
        self.keys: set[str] = set()
        self.answers: dict[str, _Given] = {}
        self.published: list[datetime] = []

    def run(self, *, after: Sequence[datetime] = ()):
        """Run it from its beginning; None where it is suspended."""
        runner = SlotRunner(self.spec, folder=self.folder, logger=logging.getLogger())
        try:
            return runner.run(C, after=after)
        except Suspended:
            return None

    def suspend(self, *, wait_for_input, key: str) -> None:
        self.keys.add(key)
        raise Suspended

    def own(self):
        policy = SimpleNamespace(pause_keys=self.keys)
        return SimpleNamespace(id="own", name="own", deployment_id="deployment", empirical_policy=policy)

    def answer(self, key: str, answer: str = "approve") -> None:
        given = PromotionAnswer(answer=answer, name="anna", why=f"{key} is good")
        self.answers[key] = _Given(given, at=SystemClock().now())

    def trained(self, spec: RetrainSpec, start: SlotStart):
        """The log of the model with the candidate that a slot has trained."""
        log, is_better = self.log, start.slot in self.better
        weights = put_artifact(log.store, spec.name, "model.safetensors", b"weights")
        decide_by = SystemClock().now() + timedelta(hours=1) if is_better else None
        found = {"slot": start.slot, "run_id": start.run.run_id, "weights": weights, "decide_by": decide_by}
        made = candidate(1, promoted=False, compared_with=log.read().in_service)
        return log.add(made.model_copy(update=found))

    @property
    def log(self) -> ModelsLog:
        return ModelsLog(open_store(store_of(self.spec)), self.spec.name)

    @property
    def outcomes(self) -> dict[str, str]:
        return {f"{slot:%b}": state.outcome_in_words for slot, state in self.log.read().slots.items()}


@pytest.fixture
def later(tmp_path, monkeypatch) -> FlowRun:
    monthly = Monthly(tmp_path / "points", name="flights", promotion="ask", missed="run")
    monthly.write(1, 2, 3, 4, 5)
    monthly.log.store.check()
    made = FlowRun(monthly.spec, monthly.folder)
    monkeypatch.setattr(questions, "suspend_flow_run", made.suspend)
    monkeypatch.setattr(questions, "_withdraw_other_questions", lambda own: None)
    monkeypatch.setattr(questions, "_own", made.own)
    monkeypatch.setattr(questions, "_answer", lambda own, key: made.answers.get(key))
    monkeypatch.setattr(slots, "check_functions", lambda spec: None)
    monkeypatch.setattr(slots, "choose_window", window_of)
    monkeypatch.setattr(slots, "check_data", lambda *_, **facts: (PASSED, ""))
    monkeypatch.setattr(slots, "train", lambda *_, **facts: Completed())
    monkeypatch.setattr(slots, "evaluate_candidate", made.trained)
    monkeypatch.setattr(slots, "known_server_id", lambda: "")
    for page in ("check_curve", "publish_data_check", "publish_model"):
        monkeypatch.setattr(slots, page, lambda *_, **facts: None)
    monkeypatch.setattr(slots, "announce", lambda spec, models, slot, **facts: made.published.append(slot))
    return made


def test_only_the_newest_candidate_is_asked_about_when_earlier_slots_were_missed(later):
    assert later.run(after=[A, B]) is None
    assert later.keys == {"promotion-3-1"}
    assert later.outcomes == {"Apr": "not promoted", "May": "not promoted", "Jun": "waits for a decision"}
    later.answer("promotion-3-1")
    assert later.run().is_completed()
    models = later.log.read()
    assert (models.in_service, later.outcomes["Jun"]) == (3, "promoted")
    assert [models.slots[slot].end.why for slot in (A, B)] == [
        f"version {version}, trained for a later slot, waits for a decision in its place" for version in (2, 3)
    ]


def test_an_earlier_slot_that_waits_is_published_and_left_to_recovery_while_the_later_ones_end(later):
    later.better = {A}
    state = later.run(after=[A, B])
    assert (state.is_completed(), later.keys) == (True, set())
    assert later.outcomes == {"Apr": "waits for a decision", "May": "not promoted", "Jun": "not promoted"}
    assert A in later.published
    store, own = open_store(store_of(later.spec)), heartbeat_of("flights", C)
    assert [record.run_id for record in parents(store)] == [heartbeat_of("flights", A)]
    left = read_parent(store, heartbeat_of("flights", A))
    assert (left.has_left, left.adopted_by) == (True, own)


def test_a_slot_of_its_own_has_a_heartbeat_that_older_versions_can_read(later):
    assert later.run() is None
    left = read_parent(open_store(store_of(later.spec)), heartbeat_of("flights", C))
    assert "adopted_by" not in left.model_dump(mode="json")
