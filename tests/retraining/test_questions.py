"""What a slot's flow run does with an answer from the UI, and without one. Of Prefect only its answers are made up."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from segue.prefect.slots import questions
from segue.prefect.slots.questions import PromotionAnswer, Questions, _Given
from segue.retraining.models import ModelsLog
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.version_files import put_artifact
from segue.stores import open_store
from segue.testing.clock import FakeClock
from tests.retraining.monthly import Monthly
from tests.retraining.test_models import candidate
from tests.retraining.test_promotion import LATE, NOW, UNTIL, begin, decision, waiting


class Suspended(BaseException):
    """Prefect ends the process of a flow run that it suspends."""


class SleepsCounted(FakeClock):
    """A clock whose sleeps do what the test says."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.sleeps = 0
        self.during = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.sleeps += 1
        self.during()


@pytest.fixture
def spec(tmp_path) -> RetrainSpec:
    return Monthly(tmp_path / "points", name="flights", promotion="ask").spec


@pytest.fixture
def log(tmp_path) -> ModelsLog:
    store = open_store(tmp_path / "store")
    store.check()
    made = ModelsLog(store, "flights")
    made.add(candidate(1))
    weights = put_artifact(store, "flights", "model.safetensors", b"weights")
    begin(made, waiting(2, compared_with=1).model_copy(update={"weights": weights}))
    return made


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, str]]:
    """The questions that were asked in the UI, with their keys."""
    found: list[tuple[str, str]] = []

    def suspend(*, wait_for_input, key: str) -> None:
        found.append((key, wait_for_input._description))
        raise Suspended

    monkeypatch.setattr(questions, "suspend_flow_run", suspend)
    monkeypatch.setattr(questions, "_withdraw_other_questions", lambda own: None)
    return found


def with_answer(
    monkeypatch, *, at: datetime, answer: str = "approve", questions_asked: int = 1, about: int = 2
) -> None:
    keys = {f"promotion-{about}-{number + 1}" for number in range(questions_asked)}
    policy = SimpleNamespace(pause_keys=keys)
    own = SimpleNamespace(id="own", deployment_id="deployment", empirical_policy=policy)
    given = _Given(PromotionAnswer(answer=answer, name="anna", why="seen"), at=at) if questions_asked else None
    monkeypatch.setattr(questions, "_own", lambda: own)
    monkeypatch.setattr(questions, "_answer", lambda own, key: given if key in keys else None)


def runner(spec: RetrainSpec, log: ModelsLog, clock: SleepsCounted) -> Questions:
    return Questions(spec, log, clock=clock, logger=logging.getLogger(), show=lambda slot: None)


def answered(spec: RetrainSpec, log: ModelsLog, *, now: datetime):
    return runner(spec, log, SleepsCounted(now)).answered(waiting(2).slot)


def test_without_an_answer_the_question_is_asked_with_what_a_person_must_know(spec, log, asked, monkeypatch):
    with_answer(monkeypatch, at=NOW, questions_asked=0)
    with pytest.raises(Suspended):
        answered(spec, log, now=NOW)
    [(key, text)] = asked
    assert key == "promotion-2-1"
    assert "In service now: version 1." in text
    assert [*log.read().waiting] == [2]


@pytest.mark.parametrize(("answer", "in_service"), [("approve", 2), ("reject", 1)])
def test_an_answer_is_the_decision(spec, log, asked, monkeypatch, answer, in_service):
    with_answer(monkeypatch, at=NOW, answer=answer)
    state = answered(spec, log, now=NOW)
    assert (log.read().in_service, state.decision.by, state.decision.why) == (in_service, "anna", "seen")
    assert asked == []


def test_an_answer_in_time_counts_when_the_flow_run_begins_again_too_late(spec, log, asked, monkeypatch):
    with_answer(monkeypatch, at=UNTIL - timedelta(seconds=1))
    assert answered(spec, log, now=LATE).decision.answer == "approved"


def test_an_answer_that_is_too_late_promotes_nothing(spec, log, asked, monkeypatch):
    with_answer(monkeypatch, at=LATE)
    assert answered(spec, log, now=LATE).decision.answer == "expired"
    assert log.read().in_service == 1


def test_an_answer_after_another_decision_changes_nothing(spec, log, asked, monkeypatch):
    log.decide(decision(2, "rejected", by="ben"), now=NOW)
    with_answer(monkeypatch, at=NOW)
    assert answered(spec, log, now=NOW).decision.by == "ben"


@pytest.mark.parametrize("about", [1, 3, 22])
def test_an_answer_about_another_version_is_none_about_this_one(spec, log, asked, monkeypatch, about):
    with_answer(monkeypatch, at=NOW, about=about, questions_asked=3)
    with pytest.raises(Suspended):
        answered(spec, log, now=NOW)
    assert [key for key, _ in asked] == ["promotion-2-1"]
    assert [*log.read().waiting] == [2]


def test_an_approval_that_cannot_be_followed_is_asked_for_again_with_the_reason(spec, log, asked, monkeypatch):
    with_answer(monkeypatch, at=NOW)
    log.add(candidate(1).model_copy(update={"run_id": "other", "compared_with": 1}))
    with pytest.raises(Suspended):
        answered(spec, log, now=NOW)
    Path(log.store.url, log.read().version(2).weights.key).unlink()
    with pytest.raises(Suspended):
        answered(spec, log, now=NOW)
    assert [key for key, _ in asked] == ["promotion-2-2", "promotion-2-2"]
    assert "version 3 is in service now" in asked[0][1]
    assert "it is missing" in asked[1][1]
    assert [*log.read().waiting] == [2]


def test_without_prefect_a_slot_waits_for_the_command_line(spec, log, asked):
    clock = SleepsCounted(NOW)
    clock.during = lambda: log.decide(decision(2), now=NOW) if clock.sleeps == 3 else None
    assert runner(spec, log, clock).answered(waiting(2).slot).decision.by == "anna"
    assert (clock.sleeps, asked) == (3, [])


def test_a_wait_without_a_decision_ends_in_time(spec, log, asked):
    clock = SleepsCounted(UNTIL - timedelta(seconds=8))
    state = runner(spec, log, clock).answered(waiting(2).slot)
    assert (state.end.outcome, clock.sleeps) == ("not_promoted", 2)
