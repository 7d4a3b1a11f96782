"""Drift of data in service begins one slot for each version and window, and the history says the figure."""

from __future__ import annotations

import re
import tempfile
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from segue.data.files import hash_of
from segue.errors import DataUnreadableError, SpecError
from segue.retraining.gate.profile import Drift
from segue.retraining.model_record import SlotEnd
from segue.retraining.pages import card, history_page
from segue.retraining.trigger_spec import DriftSpec
from segue.retraining.triggers import trigger_look as looks
from segue.retraining.triggers.drift import drift_in, exceeded, largest
from tests.retraining.monthly import slot_of_month


def serve(watched, name: str, *, shift: float = 0.0, columns: tuple[str, ...] = ("x",)) -> None:
    """Write a file of data in service: as the training data has it, and further right by `shift`."""
    folder = watched.monthly.folder / "served"
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(7).uniform(-1, 1, 400) + shift
    pd.DataFrame({"x": x, "request": range(400)})[list(columns)].to_parquet(folder / name)


@pytest.fixture
def drifting(watched):
    """A version in service, other data than that of its training, and looks at the data in service alone."""
    drift = {"data": f"{watched.monthly.folder}/served/", "max_psi": 0.25}
    watched.monthly.write_spec(trigger={"drift": drift})
    watched.run_slot(slot_of_month(4))
    watched.now += timedelta(hours=1)
    watched.monthly.write(3, slope=2.1)
    return watched


def test_data_in_service_as_in_training_begins_nothing_and_its_figure_is_said(drifting):
    serve(drifting, "01.parquet", columns=("x", "request"))
    found = drifting.look()
    assert found.trigger is None
    assert re.fullmatch(r"no drift of the data in service: the largest psi is [0-9.]+, of x", found.lines[0])


def test_drift_begins_one_slot_and_the_history_says_the_figure(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    trigger = drifting.look().trigger
    assert trigger.cause == "drift"
    assert re.search(
        r"drift of the data in service from the data of version 1: x has the psi [0-9.]+, above 0.25 \(1 file",
        trigger.why,
    )
    assert drifting.look(after_minutes=10).trigger is None
    drifting.run_slot(trigger.slot, outcome="not_promoted")
    serve(drifting, "02.parquet", shift=0.8)
    later = drifting.look(after_minutes=10)
    assert (later.trigger, "there is no newer data to train on" in later.lines[0]) == (None, True)
    assert drifting.look(after_minutes=10).lines == ("drift: the data in service was compared before",)
    assert [*drifting.models.triggers] == [trigger.slot]
    assert "drift of the data in service" in history_page(drifting.models, zone=drifting.monthly.spec.zone)


@pytest.mark.parametrize("outcome", ["promoted", "not_promoted"])
def test_drift_that_goes_on_trains_once_on_the_same_data(drifting, outcome):
    """Also where every version is promoted, and each look finds another file with drift."""
    for day in range(1, 6):
        serve(drifting, f"{day:02}.parquet", shift=0.8)
        found = drifting.look(after_minutes=10)
        assert (found.trigger is None) == (day > 1), found
        assert found.trigger is not None or "there is no newer data to train on" in found.lines[0]
        if found.trigger is not None:
            drifting.run_slot(found.trigger.slot, outcome=outcome)
    drifting.monthly.write(3, slope=2.2)
    assert drifting.look(after_minutes=10).trigger is not None  # The same files in service, and other data to train on.


def test_drift_begins_nothing_on_the_data_of_the_version_in_service_that_was_written_again(drifting):
    drifting.monthly.write(3)
    serve(drifting, "01.parquet", shift=0.8)
    april = f"the slot of {slot_of_month(4):%Y-%m-%d %H:%M:%S %Z} has these files"
    assert april in drifting.look(after_minutes=10).lines[0]
    drifting.monthly.write(3, slope=3.0)
    drifting.run_slot(slot_of_month(4) + timedelta(hours=2), outcome="not_promoted")  # By hand.
    drifting.monthly.write(3)
    assert april in drifting.look(after_minutes=100).lines[0]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "data_gate"])
def test_drift_begins_no_second_slot_on_data_that_a_slot_failed_on(drifting, outcome):
    serve(drifting, "01.parquet", shift=0.8)
    drifting.run_slot(drifting.look().trigger.slot, outcome=outcome)
    for day in (2, 3):
        serve(drifting, f"{day:02}.parquet", shift=0.8)
        assert "there is no newer data to train on" in drifting.look(after_minutes=10).lines[0]


def test_a_slot_of_a_drift_that_was_left_out_begins_again(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    left_out = drifting.look().trigger
    drifting.monthly.log.end_slot(SlotEnd(slot=left_out.slot, outcome="skipped", why="another is not done"))
    assert drifting.look(after_minutes=10).trigger.slot > left_out.slot


def test_the_card_of_what_a_drift_trained_says_the_figure(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    drifting.run_slot(drifting.look().trigger.slot)
    assert "x has the psi" in card(drifting.models, 2)


def test_drift_that_goes_on_begins_another_slot_when_there_is_other_data_to_train_on(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    first = drifting.look().trigger
    drifting.run_slot(first.slot, outcome="failed")
    drifting.monthly.write(3, slope=3.0)
    serve(drifting, "02.parquet", shift=0.8)
    assert drifting.look(after_minutes=10).trigger.slot > first.slot


def test_only_the_newest_files_are_compared_where_that_is_asked_for(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    serve(drifting, "02.parquet")
    spec = drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True)
    drifting.monthly.write_spec(trigger={"drift": spec | {"newest_files": 1}})
    assert "no drift" in drifting.look().lines[0]


def test_without_a_version_in_service_or_files_nothing_is_compared(watched):
    drift = {"data": f"{watched.monthly.folder}/served/*.parquet", "max_ks": 0.1}
    watched.monthly.write_spec(trigger={"drift": drift})
    assert watched.look().lines == ("drift is not computed: no version is in service",)
    watched.run_slot(slot_of_month(4))
    assert "there are no files at " in watched.look().lines[0]


def test_a_column_that_is_asked_for_and_is_gone_has_drifted(drifting):
    serve(drifting, "01.parquet", columns=("request",))
    assert "no column of it can be compared" in drifting.look().lines[0]
    spec = drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True)
    drifting.monthly.write_spec(trigger={"drift": spec | {"columns": ["x"]}})
    serve(drifting, "02.parquet", columns=("request",))
    assert "x is missing, or of another kind" in drifting.look().trigger.why


def test_a_column_that_no_version_was_trained_on_is_refused_with_the_key(drifting):
    spec = drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True)
    drifting.monthly.write_spec(trigger={"drift": spec | {"columns": ["z"]}})
    serve(drifting, "01.parquet")
    with pytest.raises(SpecError, match=r"trigger.drift.columns: .* not trained on a column z; it was on x, y"):
        drifting.look()


@pytest.mark.parametrize("faster", ["another look", "a slot that runs", "a slot that is done"])
def test_a_slow_comparison_begins_no_second_slot_beside_what_came_meanwhile(drifting, monkeypatch, faster):
    serve(drifting, "01.parquet", shift=0.8)
    monkeypatch.setattr(looks.drift, "drift_in", lambda *given: (meanwhile(), drift_in(*given))[1])

    def meanwhile() -> None:
        slot = drifting.now - timedelta(minutes=10)
        if faster == "another look":
            drifting.monthly.log.trigger("arrival", "seen", why="new data", now=slot)
        elif faster == "a slot that runs":
            drifting.open_slot(slot)
        else:
            drifting.run_slot(slot)

    found = drifting.look()
    assert (found.trigger, "another slot was requested meanwhile" in found.lines[0]) == (None, True)
    assert not [each for each in drifting.models.triggers.values() if each.cause == "drift"]


@pytest.mark.parametrize("problem", ["columns", "damaged"])
def test_a_comparison_that_fails_forgets_nothing_that_was_seen(drifting, monkeypatch, problem):
    drift = drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True)
    drift |= {"columns": ["z"]} if problem == "columns" else {}
    drifting.monthly.write(3)  # The same bytes again, which only reading tells.
    drifting.monthly.write_spec(trigger={"arrival": {}, "drift": drift})
    serve(drifting, "01.parquet", shift=0.8)
    if problem == "damaged":
        path = drifting.monthly.folder / "served/01.parquet"
        path.write_bytes(path.read_bytes()[:200])
    read = []
    monkeypatch.setattr(looks, "hash_of", lambda path, access: read.append(path) or hash_of(path, access))
    drifting.look()
    for _ in range(3):
        with pytest.raises((SpecError, DataUnreadableError)):
            drifting.look(after_minutes=10)
    assert len(read) == len(set(read)) == 3


def test_of_remote_files_in_service_no_copy_is_kept(drifting, tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    drift = drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True) | {"data": "memory://served/"}
    cache = tmp_path / "cache"
    drifting.monthly.write_spec(trigger={"drift": drift}, data={"cache_folder": str(cache)})
    for name, shift in (("01.parquet", 0.0), ("02.parquet", 0.8)):
        serve(drifting, name, shift=shift)
        fsspec.filesystem("memory").pipe(f"/served/{name}", (drifting.monthly.folder / f"served/{name}").read_bytes())
        assert "drift of the data in service" in drifting.look(after_minutes=10).lines[0]
        assert not [*cache.rglob("*"), *(tmp_path / "temporary").rglob("*")]


def test_the_newest_seven_files_are_read_where_no_number_is_given(drifting):
    for day in range(1, 11):
        serve(drifting, f"{day:02}.parquet", shift=0.8 if day < 4 else 0.0)
    assert drifting.monthly.spec.trigger.drift.newest_files == 7
    assert "no drift" in drifting.look().lines[0]


def test_data_in_service_that_is_damaged_is_named_and_compared_when_it_is_whole(drifting):
    serve(drifting, "01.parquet", shift=0.8)
    path = drifting.monthly.folder / "served/01.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataUnreadableError, match=r"served/01\.parquet"):
        drifting.look()
    path.write_bytes(whole)
    assert drifting.look().trigger is not None


def test_drift_waits_for_data_that_is_still_arriving(drifting):
    spec = {"drift": drifting.monthly.spec.trigger.drift.model_dump(exclude_none=True), "arrival": {}}
    drifting.monthly.write_spec(trigger=spec)
    drifting.monthly.write(3, rows=300)
    serve(drifting, "01.parquet", shift=0.8)
    first = drifting.look()
    assert (first.trigger, "count as complete in" in first.lines[0], len(first.lines)) == (None, True, 1)
    arrived = drifting.look(after_minutes=5).trigger
    assert arrived.cause == "arrival"
    assert "after the end of the running slot" in drifting.look(after_minutes=5).lines[1]
    drifting.run_slot(arrived.slot, outcome="not_promoted")
    assert "there is no newer data to train on" in drifting.look(after_minutes=5).lines[1]


@pytest.mark.parametrize(
    ("limits", "drift", "said"),
    [
        ({"max_psi": 0.25}, Drift(0.25, 0.9), ""),
        ({"max_psi": 0.25}, Drift(0.26, 0.9), "x has the psi 0.26, above 0.25"),
        ({"max_ks": 0.1}, Drift(9.0, 0.1), ""),
        ({"max_ks": 0.1}, Drift(9.0, 0.2), "x has the ks 0.2, above 0.1"),
        ({"max_ks": 0.1}, Drift(9.0, None), ""),
    ],
)
def test_a_column_has_drifted_above_its_limit(limits, drift, said):
    assert exceeded(DriftSpec(data="served/", **limits), {"x": drift}) == said
    assert largest({"x": drift, "y": Drift(0.0, None)}) == f"the largest psi is {drift.psi:.3g}, of x"
