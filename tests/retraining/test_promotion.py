"""Candidates whose promotion a person is asked for: the first decision counts, whatever comes between."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Completed, Crashed, Pending, Running, Scheduled, Suspended

from segue.clock import SystemClock
from segue.errors import DamagedVersionError, ModelChangedError, NotWaitingError, SpecError
from segue.prefect.recovery.slot_parents import next_start
from segue.prefect.slots.events import event_of
from segue.prefect.slots.turns import Turns
from segue.records import ParentRecord
from segue.retraining.gate.record import GateResult
from segue.retraining.history import Models, SlotState
from segue.retraining.model_record import Answer, Candidate, Decision, SlotEnd, SlotStart
from segue.retraining.models import ModelsLog
from segue.retraining.pages import card, history_page, question
from segue.retraining.promotion import asked
from segue.retraining.slots import heartbeat_of
from segue.retraining.spec import RetrainSpec, Window
from segue.retraining.versions.version_files import put_artifact, require_artifact
from segue.runlog.parents import read_parent, write_parent
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from tests.retraining.monthly import Monthly
from tests.retraining.test_models import candidate

NOW = datetime(2013, 6, 1, 12, tzinfo=UTC)
UNTIL = NOW + timedelta(hours=72)
LATE = UNTIL + timedelta(seconds=1)
PASSED = GateResult(outcome="passed", expectations=1, rows=1)


def decision(version: int, answer: Answer = "approved", *, by: str = "anna") -> Decision:
    return Decision(version=version, answer=answer, by=by, why="looks good")


def waiting(number: int, *, compared_with: int | None = None) -> Candidate:
    """The candidate of a month's slot, which waits for a decision."""
    return candidate(number, compared_with=compared_with, promoted=False).model_copy(update={"decide_by": UNTIL})


def begin(log: ModelsLog, found: Candidate) -> Models:
    """The slot of a candidate from its start to the candidate."""
    log.open_slot(SlotStart(slot=found.slot, window=Window(files=()), gate=PASSED))
    return log.add(found)


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "store")
    opened.check()
    return opened


@pytest.fixture
def log(store) -> ModelsLog:
    """A model with a version in service, and one that waits for a decision."""
    made = ModelsLog(store, "flights")
    made.add(candidate(1))
    begin(made, waiting(2, compared_with=1))
    return made


def slot_of(models: Models, version: int) -> SlotState:
    return models.slot_of(version)


def test_a_candidate_that_waits_is_not_in_service_and_its_slot_is_open(log):
    models = log.read()
    assert (models.in_service, [*models.waiting]) == (1, [2])
    state = slot_of(models, 2)
    assert (state.is_open, state.is_done, state.outcome_in_words) == (True, False, "waits for a decision")


@pytest.mark.parametrize(
    ("answer", "in_service", "outcome"), [("approved", 2, "promoted"), ("rejected", 1, "not_promoted")]
)
def test_a_decision_promotes_or_not_and_ends_the_slot_in_one_record(log, store, answer, in_service, outcome):
    records = log.read().events
    models = log.decide(decision(2, answer), now=NOW)
    assert len(models.events) == len(records) + 1
    assert (models.in_service, models.waiting) == (in_service, {})
    end = slot_of(models, 2).end
    assert (end.outcome, end.why) == (outcome, f"{answer} by anna: looks good")
    assert slot_of(models, 2).is_done
    assert ModelsLog(store, "flights").read() == models


@pytest.mark.parametrize("second", ["approved", "rejected"])
@pytest.mark.parametrize("first", ["approved", "rejected"])
def test_the_first_decision_counts_and_the_second_is_told_it(log, store, first, second):
    log.decide(decision(2, first), now=NOW)
    models = ModelsLog(store, "flights").decide(decision(2, second, by="ben"), now=NOW)
    assert slot_of(models, 2).decision == decision(2, first)
    assert models.in_service == (2 if first == "approved" else 1)
    assert len([event for event in models.events if isinstance(event.record, Decision)]) == 1


def test_of_people_who_decide_at_the_same_moment_one_decides_for_all(log, store):
    answers: list[Answer] = ["approved", "rejected"] * 4
    barrier = Barrier(len(answers))

    def decide(number: int) -> Decision | None:
        own = ModelsLog(store, "flights")
        own.read()
        barrier.wait()
        return slot_of(own.decide(decision(2, answers[number], by=str(number)), now=NOW), 2).decision

    with ThreadPoolExecutor(len(answers)) as pool:
        stands = list(pool.map(decide, range(len(answers))))
    assert len(set(stands)) == 1
    models = log.read()
    assert models.in_service == (2 if stands[0].answer == "approved" else 1)
    assert len([event for event in models.events if isinstance(event.record, Decision)]) == 1


def test_a_decision_whose_answer_was_lost_is_recorded_once(log, store):
    failing = iter([True])
    faulty = FaultyStore(
        store, fails=lambda method, key: method == "put_if_absent" and next(failing, False), after=True
    )
    assert ModelsLog(faulty, "flights").decide(decision(2), now=NOW).in_service == 2
    assert len([event for event in log.read().events if isinstance(event.record, Decision)]) == 1


@pytest.mark.parametrize(
    ("now", "answer"), [(UNTIL - timedelta(seconds=1), "approved"), (UNTIL, "expired"), (LATE, "expired")]
)
def test_an_approval_counts_only_before_the_time_is_over(log, now, answer):
    models = log.decide(decision(2), now=now)
    assert slot_of(models, 2).decision.answer == answer
    assert models.in_service == (2 if answer == "approved" else 1)
    if answer == "expired":
        assert slot_of(models, 2).end.why == "nobody decided by 2013-06-04 12:00 UTC"


def test_an_approval_after_another_version_came_into_service_is_refused_and_the_candidate_waits_on(log):
    log.add(candidate(1).model_copy(update={"run_id": "other", "compared_with": 1}))
    with pytest.raises(ModelChangedError, match="compared with version 1, but version 3 is in service now"):
        log.decide(decision(2), now=NOW)
    assert [*log.read().waiting] == [2]
    log.choose(1, why="back")
    assert log.decide(decision(2), now=NOW).in_service == 2


def test_a_promotion_by_hand_of_the_version_that_waits_is_the_decision(log):
    models = log.choose(2, why="anyway")
    assert (models.in_service, slot_of(models, 2).end.why) == (2, "promoted by hand: anyway")
    later = log.decide(decision(2, "rejected"), now=NOW)
    assert (later.in_service, slot_of(later, 2).end.outcome) == (2, "promoted")


def test_a_rollback_decides_nothing(log):
    assert [*log.choose(1, why="back").waiting] == [2]


@pytest.mark.parametrize("later", [waiting(3, compared_with=1), candidate(3, compared_with=1)])
def test_a_candidate_of_a_later_slot_that_is_better_takes_the_place_of_one_that_waits(log, later):
    models = begin(log, later)
    end = slot_of(models, 2).end
    assert end.outcome == "not_promoted"
    assert end.why.startswith("version 3, trained for a later slot, ")
    assert [*models.waiting] == ([3] if later.decide_by else [])
    after = log.decide(decision(2), now=NOW)
    assert after.in_service == models.in_service
    assert slot_of(after, 2).end == end


def test_a_candidate_of_a_later_slot_that_is_no_better_leaves_the_one_that_waits(log):
    assert [*begin(log, candidate(3, compared_with=1, promoted=False)).waiting] == [2]


def test_a_slot_that_was_cancelled_does_not_wait(log):
    log.end_slot(SlotEnd(slot=waiting(2).slot, outcome="cancelled", why="its flow run was cancelled"))
    with pytest.raises(NotWaitingError, match=r"version 2 .* does not wait for a decision; its slot has ended as canc"):
        log.decide(decision(2), now=NOW)
    with pytest.raises(NotWaitingError, match="version 1 of model flights does not wait"):
        log.decide(decision(1), now=NOW)
    assert log.read().in_service == 1


def test_a_candidate_waits_only_while_the_version_that_it_was_compared_with_is_in_service(log):
    with pytest.raises(ModelChangedError):
        begin(log, waiting(3, compared_with=None))


@pytest.fixture
def spec(tmp_path) -> RetrainSpec:
    made = Monthly(tmp_path / "points", name="flights", promotion="ask")
    return made.spec


def test_only_a_candidate_that_is_better_waits_and_for_the_hours_of_the_setting(log, spec, tmp_path):
    models = log.read()
    better, worse = candidate(4, compared_with=1), candidate(4, compared_with=1, promoted=False)
    found = asked(better, spec, models, now=NOW)
    assert (found.is_promoted, found.decide_by, found.why) == (False, UNTIL, better.why)
    assert asked(worse, spec, models, now=NOW) == worse
    automatic = spec.model_copy(update={"promotion": "automatic"})
    assert asked(better, automatic, models, now=NOW) == better


def test_nobody_is_asked_about_a_candidate_of_a_slot_before_one_that_waits(log, spec):
    found = asked(candidate(1), spec, log.read(), now=NOW)
    assert (found.is_promoted, found.decide_by) == (False, None)
    assert found.why == "version 2, trained for a later slot, waits for a decision"


def test_the_records_of_a_retraining_that_asks_nobody_are_as_before(log):
    assert "decide_by" not in candidate(5).model_dump(mode="json")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"promotion": "asks"}, "promotion"),
        ({"decide_within_hours": 5}, 'decide_within_hours: needs promotion = "ask"'),
        ({"promotion": "ask", "decide_within_hours": 0}, "decide_within_hours"),
        ({"promotion": "ask", "decide_within_hours": 673}, "decide_within_hours"),
    ],
)
def test_wrong_settings_of_a_promotion_are_named_with_the_file_and_the_key(tmp_path, fields, problem):
    monthly = Monthly(tmp_path / "points")
    monthly.write_spec(**fields)
    with pytest.raises(SpecError, match=problem) as caught:
        RetrainSpec.from_toml(monthly.file)
    assert str(monthly.file) in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"promotion": "ask"},
        {"promotion": "ask", "decide_within_hours": 5},
        {"trigger": {"arrival": {}}},
        {"trigger": {"drift": {"data": "served/", "max_psi": 0.2}}},
    ],
)
def test_settings_are_what_they_were_when_they_were_written_for_another_process(tmp_path, fields):
    found = Monthly(tmp_path / "points", **fields).spec
    assert RetrainSpec.model_validate_json(found.model_dump_json()) == found


def test_the_pages_say_that_a_version_waits_and_who_decided_when_and_why(log):
    models = log.read()
    assert "**waits for a decision until 2013-06-04 12:00 UTC**" in card(models, 2)
    assert "until 2013-06-04 12:00 UTC" in history_page(models, zone=UTC)
    text = question(models, 2, zone=UTC, problem="its file is gone.")
    for part in ("The last answer could not be followed: its file is gone.", "In service now: version 1", "2013-06-04"):
        assert part in text
    models = log.decide(decision(2), now=NOW)
    at = f"{models.events[-1].at:%Y-%m-%d %H:%M UTC}"
    assert f"{at}: approved by anna: looks good" in card(models, 2)
    assert "approved by anna: looks good" in history_page(models, zone=UTC)


def test_a_candidate_that_waits_is_an_event_of_its_own(log, spec):
    event = event_of(spec, log.read(), waiting(2).slot, now=NOW)
    assert (event.name, event.facts["version"]) == ("segue.model.waiting", 2)
    assert "version 2 waits for a decision until 2013-06-04 12:00 UTC" in event.sentence
    models = log.decide(decision(2), now=NOW)
    ended = event_of(spec, models, waiting(2).slot, now=NOW)
    assert (ended.name, ended.key) == ("segue.model.promoted", f"{event.key.split(':')[0]}:1")


def test_weights_that_are_gone_or_cut_are_not_approved(store):
    artifact = put_artifact(store, "flights", "model.safetensors", b"weights")
    require_artifact(store, artifact)
    place = Path(store.url, artifact.key)
    place.write_bytes(b"cut")
    with pytest.raises(DamagedVersionError, match=r"it has 3 bytes, and 7 were published.*segue models reject"):
        require_artifact(store, artifact)
    place.unlink()
    with pytest.raises(DamagedVersionError, match="it is missing"):
        require_artifact(store, artifact)


def test_a_slot_that_waits_for_a_decision_does_not_hold_up_the_next_one(log, store, spec):
    name = heartbeat_of(spec.name, waiting(2).slot)
    left = ParentRecord(run_id=name, parent_id="a", has_left=True, timeout_seconds=10, beat_at=NOW)
    write_parent(store, left)
    turns = Turns(spec, store, log, clock=SystemClock(), logger=logging.getLogger())

    def adopt(slot: datetime) -> None:
        raise AssertionError(f"{slot} was adopted")

    assert turns.wait(waiting(3).slot, has_begun=False, adopt=adopt) is None
    assert [*log.read().waiting] == [2]
    assert read_parent(store, name) == left  # Recovery looks after it.


def flow_run(state: State, *, run_count: int = 1, deployment: bool = True) -> FlowRun:
    some_id = "00000000-0000-0000-0000-000000000001"
    found = state.model_copy(update={"timestamp": NOW})
    return FlowRun(flow_id=some_id, state=found, run_count=run_count, deployment_id=some_id if deployment else None)


@pytest.mark.parametrize(
    ("run", "now", "is_decided", "expected"),
    [
        (flow_run(Suspended()), NOW, False, "wait"),
        (flow_run(Suspended()), UNTIL, False, "go on"),
        (flow_run(Suspended()), NOW, True, "go on"),
        (flow_run(Scheduled()), NOW, False, "starts"),
        (flow_run(Pending()), NOW + timedelta(seconds=9), False, "starts"),
        (flow_run(Pending()), NOW + timedelta(seconds=11), False, "go on"),
        (flow_run(Running()), NOW + timedelta(seconds=9), True, "starts"),
        (flow_run(Running()), NOW + timedelta(seconds=11), True, "go on"),
        (flow_run(Crashed()), NOW, False, "go on"),
        (flow_run(Crashed()), NOW, True, "go on"),
        (flow_run(Crashed(), run_count=20), NOW, True, "none"),
        (flow_run(Completed()), NOW, True, "none"),
        (flow_run(Cancelled()), NOW, False, "none"),
        (flow_run(State(type=StateType.CANCELLING)), NOW, False, "none"),
        (flow_run(Suspended(), deployment=False), NOW, False, "none"),
    ],
)
def test_what_recovery_does_about_the_flow_run_of_a_slot_that_waits(log, run, now, is_decided, expected):
    models = log.decide(decision(2), now=NOW) if is_decided else log.read()
    assert next_start(run, slot_of(models, 2), now=now, start_seconds=10) == expected
