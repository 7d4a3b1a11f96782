"""The log of a model's versions: promotions at the same moment are ordered, none is lost, a person can roll back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

import pytest

from segue.errors import (
    ForgedRecordError,
    ModelChangedError,
    ReplayedRecordError,
    SigningKeyNeededError,
    UnknownModelError,
    UnknownVersionError,
)
from segue.retraining.model_record import Artifact, Candidate
from segue.retraining.models import ModelsLog
from segue.retraining.versions.serving import known_model
from segue.runlog import keys
from segue.runlog.open import known_runs
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore


def candidate(number: int, *, compared_with: int | None = None, promoted: bool = True) -> Candidate:
    return Candidate(
        slot=datetime(2013, number, 3, tzinfo=UTC),
        run_id=f"flights-2013-{number:02}",
        step=100,
        attempt_id="seg000-a1-e1",
        weights=Artifact(key="weights", sha256="0" * 64, size_bytes=1),
        compared_with=compared_with,
        is_promoted=promoted,
        why="better" if promoted else "no better",
    )


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "store")
    opened.check()
    return opened


@pytest.fixture
def log(store) -> ModelsLog:
    return ModelsLog(store, "flights")


def test_a_model_without_candidates_is_none(log):
    assert (log.read().in_service, log.read().before, log.read().candidates) == (None, None, {})
    with pytest.raises(UnknownModelError, match="there is no model 'flights' in "):
        known_model(log.store.url, "flights")


def test_a_promoted_candidate_is_in_service_and_one_that_is_not_is_kept(log, store):
    assert log.add(candidate(1)).in_service == 1
    assert log.add(candidate(2, promoted=False)).in_service == 1
    models = log.add(candidate(3, compared_with=1))
    assert (models.in_service, models.before, [*models.candidates]) == (3, 1, [1, 2, 3])
    assert ModelsLog(store, "flights").read() == models
    assert ModelsLog(store, "trains").read().in_service is None


def test_a_slot_that_is_run_twice_is_recorded_once(log, store):
    log.add(candidate(1))
    again = ModelsLog(store, "flights").add(candidate(1))
    assert [*again.candidates] == [1]


def test_a_rollback_and_a_promotion_by_hand_are_events_of_their_own(log):
    log.add(candidate(1))
    log.add(candidate(2, compared_with=1))
    log.add(candidate(3, compared_with=2, promoted=False))
    models = log.choose(log.read().before, why="slow at the gate")
    assert (models.in_service, models.before) == (1, None)  # A second rollback does not lead back to version 2.
    assert (models.events[-1].record.why, models.events[-1].version) == ("slow at the gate", 1)
    assert log.choose(3, why="by hand").in_service == 3
    with pytest.raises(UnknownVersionError, match="model flights has no version 9: its versions are 1 to 3"):
        log.choose(9, why="")


def test_a_candidate_that_was_compared_with_another_version_is_not_promoted(log):
    log.add(candidate(1))
    log.add(candidate(2, compared_with=1))
    with pytest.raises(ModelChangedError, match="compared with version 1, but version 2 is in service now"):
        log.add(candidate(3, compared_with=1))
    assert log.read().in_service == 2
    assert log.add(candidate(3, compared_with=1, promoted=False)).in_service == 2  # It changes nothing, so it is kept.


def test_of_promotions_at_the_same_moment_one_succeeds_and_the_others_are_told(store):
    count = 8
    barrier = Barrier(count)

    def promote(number: int) -> bool:
        log = ModelsLog(store, "flights")
        log.read()
        barrier.wait()
        try:
            log.add(candidate(number))
        except ModelChangedError:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        promoted = list(pool.map(promote, range(1, count + 1)))
    models = ModelsLog(store, "flights").read()
    assert promoted.count(True) == len(models.candidates) == 1
    assert models.candidates[1].run_id == f"flights-2013-{promoted.index(True) + 1:02}"


def test_refused_candidates_at_the_same_moment_are_all_kept(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ModelsLog(store, "flights").add(candidate(n, promoted=False)), range(1, 9)))
    models = ModelsLog(store, "flights").read()
    assert {each.run_id for each in models.candidates.values()} == {f"flights-2013-{n:02}" for n in range(1, 9)}


def test_a_promotion_whose_answer_was_lost_is_recorded_once(store):
    failing = iter([True])
    faulty = FaultyStore(
        store, fails=lambda method, key: method == "put_if_absent" and next(failing, False), after=True
    )
    assert ModelsLog(faulty, "flights").add(candidate(1)).in_service == 1
    assert [*ModelsLog(store, "flights").read().candidates] == [1]


def test_models_are_no_runs(log, store):
    log.add(candidate(1))
    assert store.folders() == ["_model-flights"]
    assert list(known_runs(store.url)) == []


@pytest.fixture
def signed(store, monkeypatch) -> StoreSpec:
    monkeypatch.setenv("SEGUE_TEST_KEY", "0123456789abcdef" * 4)
    return StoreSpec(url=store.url, signing_key="env:SEGUE_TEST_KEY")


def test_a_signed_log_of_a_model_is_read_with_its_key_only(store, signed):
    ModelsLog(store, "flights", spec=signed).add(candidate(1))
    assert ModelsLog(store, "flights", spec=signed).read().in_service == 1
    with pytest.raises(SigningKeyNeededError):
        ModelsLog(store, "flights").read()


def test_a_forged_version_in_a_signed_log_is_refused(store, signed):
    ModelsLog(store, "flights", spec=signed).add(candidate(1))
    ModelsLog(store, "forged").add(candidate(2))
    key = keys.log_key(keys.model_folder("flights"), 1)
    assert store.put_if_absent(key, store.get(keys.log_key(keys.model_folder("forged"), 0)))
    with pytest.raises(ForgedRecordError):
        ModelsLog(store, "flights", spec=signed).read()


def test_a_version_of_another_models_signed_log_is_not_replayed(store, signed):
    ModelsLog(store, "flights", spec=signed).add(candidate(1))
    ModelsLog(store, "boats", spec=signed).add(candidate(2))
    key = keys.log_key(keys.model_folder("flights"), 1)
    assert store.put_if_absent(key, store.get(keys.log_key(keys.model_folder("boats"), 0)))
    with pytest.raises(ReplayedRecordError):
        ModelsLog(store, "flights", spec=signed).read()
