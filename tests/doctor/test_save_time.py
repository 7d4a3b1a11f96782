"""A save that does not fit its notice is said before the next segment, once an attempt has measured it."""

from __future__ import annotations

import logging

from segue.doctor.save_time import newly_measured, notice_seconds
from segue.records import StopReason
from segue.runlog import keys
from segue.runlog.entries import encode
from segue.spec import RunSpec
from segue.stores import open_store
from segue.tasks import segment
from tests.support.histories import Logbook, make_spec


def test_a_run_says_once_after_each_attempt_that_its_saves_do_not_fit():
    spec = make_spec(grace_seconds=25)
    book = Logbook(spec)
    assert newly_measured(spec, book.history) is None
    book.attempt(StopReason.LOST, commit=10, save_seconds=30.0)
    assert "no last save can be made" in newly_measured(spec, book.history).reason
    book.not_started()
    assert newly_measured(spec, book.history) is None
    assert newly_measured(make_spec(grace_seconds=120), book.history) is None


def test_the_time_of_a_notice_is_the_shortest_of_what_the_run_the_pool_and_the_cloud_give():
    spec = make_spec(grace_seconds=100, notices=[])
    assert [notice_seconds(spec, kept_seconds=kept) for kept in (None, 15, 110)] == [100, 15, 100]
    assert [notice_seconds(make_spec(grace_seconds=given, notices=["aws"])) for given in (25, 600)] == [120, 120]
    found = [notice_seconds(make_spec(grace_seconds=25), platform=name) for name in ("aws", "gce", None)]
    assert found == [120, 25, 25]
    assert notice_seconds(make_spec(grace_seconds=25), platform="aws", kept_seconds=30) == 30
    on_slurm = make_spec(grace_seconds=25, slurm={"spot": "preemptible", "on_demand": "batch"})
    assert notice_seconds(on_slurm, platform="aws") == 25, "the metadata is that of a login node"


def stored(spec: RunSpec, *, save_seconds: float) -> None:
    """Write the log of a run whose first attempt was preempted."""
    book, store = Logbook(spec), open_store(spec.store)
    book.attempt(StopReason.LOST, commit=10, save_seconds=save_seconds)
    store.check()
    for slot in book.slots:
        store.put(keys.log_key(spec.run_id, slot.number), encode(slot.entry))


def test_a_save_that_is_longer_than_a_notice_is_said_before_the_next_segment(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(segment, "get_run_logger", logging.getLogger)
    spec = make_spec(store={"url": str(tmp_path / "store")}, grace_seconds=25)
    stored(spec, save_seconds=30.0)
    assert segment.plan_segment.fn(spec).action == "run"
    assert "a save takes 30 s (measured in the run's attempts), and a notice gives 25 s (2 min on EC2)" in caplog.text
    assert "Fix: set a higher value for grace_seconds" in caplog.text


def test_a_save_that_fits_is_not_mentioned(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(segment, "get_run_logger", logging.getLogger)
    spec = make_spec(store={"url": str(tmp_path / "store")}, grace_seconds=25)
    stored(spec, save_seconds=3.0)
    assert segment.plan_segment.fn(spec).action == "run"
    assert "a save takes" not in caplog.text
