"""The loss curve as a frame: each step once, every column, and honest where something is not there."""

from __future__ import annotations

import io
import logging

import pandas as pd
import pyarrow.parquet as pq
import pytest

import segue
from segue.continuity.witness import NORMS_EVERY_STEPS
from segue.curves.frame import curve
from segue.curves.schema import SCHEMA
from segue.errors import RunNotFoundError
from segue.records import Environment
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from tests.support.resumed_run import read_resumed

HERE = {
    "torch": "2.13.0",
    "device": "cpu",
    "instruction_set": "AVX2",
    "processor": "a processor",
    "threads": 2,
    "world_size": 1,
}


def files_of(run):
    return sorted((run.store / "nightly" / "metrics").glob("*.parquet"))


def test_each_step_is_there_once_with_all_columns(resumed):
    frame = curve(resumed.log)
    assert list(frame["step"]) == list(range(1, 61))
    assert list(frame.columns) == [*SCHEMA.names, "verdict"]
    norms = ["grad_norm", "param_norm"]
    assert frame.drop(columns=norms).notna().all().all()
    assert frame[frame["step"] % NORMS_EVERY_STEPS == 0][norms].notna().all().all()
    assert set(frame["run"]) == {"nightly"}


def test_rows_say_where_their_attempt_came_from_and_how_its_resume_was_judged(resumed):
    facts = ["segment", "attempt", "attempt_id", "capacity", "from_checkpoint", "verdict"]
    found = curve(resumed.log).drop_duplicates(facts)[["step", *facts]].to_numpy().tolist()
    first, second = (attempt.claim.attempt_id for attempt in resumed.history.attempts)
    assert found == [[1, 0, 1, first, "spot", 0, "first"], [21, 1, 1, second, "spot", 20, "exact"]]
    environments = {a.claim.attempt_id: a.claim.environment.short_id for a in resumed.history.attempts}
    frame = curve(resumed.log)
    assert list(frame["environment"]) == list(frame["attempt_id"].map(environments))


def test_superseded_steps_are_there_on_request_and_marked(resumed):
    frame = curve(resumed.log, superseded=True)
    lost = frame[frame["superseded"]]
    first = resumed.history.attempts[0].claim.attempt_id
    assert (list(lost["step"]), set(lost["attempt_id"])) == (list(range(21, 31)), {first})
    assert len(frame) == 70


def test_a_run_id_and_a_store_are_enough(resumed):
    pd.testing.assert_frame_equal(segue.curve("nightly", store=str(resumed.store)), curve(resumed.log))
    pd.testing.assert_frame_equal(segue.curve("nightly", store=resumed.store), curve(resumed.log))


def test_an_unknown_run_is_an_error_that_names_those_that_are_there(resumed):
    unknown = RunLog(LocalStore(resumed.store), "nightli")
    for ask in (lambda: curve("nightli", store=resumed.store), lambda: curve(unknown)):
        with pytest.raises(RunNotFoundError, match=r"no run 'nightli' in .* Runs there: nightly\."):
            ask()


def test_a_run_without_a_checkpoint_has_an_empty_curve_with_all_columns(make_spec, open_log):
    frame = curve(open_log(make_spec()))
    assert (len(frame), list(frame.columns)) == (0, [*SCHEMA.names, "verdict"])


def test_files_from_before_the_new_columns_read_the_same(resumed, tmp_path):
    old = resumed.copy(tmp_path / "store")
    for path in files_of(old):
        pq.write_table(pq.read_table(io.BytesIO(path.read_bytes())).drop(["environment", "from_checkpoint"]), path)
    pd.testing.assert_frame_equal(curve(old.log, superseded=True), curve(resumed.log, superseded=True))


def test_a_torn_file_is_left_out_and_named(resumed, tmp_path, caplog):
    torn = resumed.copy(tmp_path / "store")
    first, _ = files_of(torn)
    first.write_bytes(first.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        assert list(curve(torn.log)["step"]) == list(range(21, 61))
    assert f"nightly/metrics/{first.name}" in caplog.text


def test_an_attempt_whose_verdict_is_not_known_says_so(resumed, tmp_path):
    copied = resumed.copy(tmp_path / "store")
    (slot,) = (slot for slot in copied.log.slots if slot.entry.kind == "verdict")
    (copied.store / "nightly" / "log" / f"{slot.number:08d}.json").unlink()
    frame = curve(read_resumed(copied.store).log)
    assert list(frame["verdict"]) == ["first"] * 20 + ["not reached"] * 40


def test_the_verdict_in_the_log_has_the_replayed_rows_as_the_curve_has_them(resumed):
    (entry,) = resumed.history.resumes
    frame = curve(resumed.log).set_index("step")
    assert [row.step for row in entry.replay] == list(range(21, 29))
    assert [row.loss for row in entry.replay] == list(frame.loc[21:28, "loss"])


def test_equal_environments_share_their_short_name():
    assert Environment(**HERE).short_id == Environment(**HERE).short_id
    assert Environment(**HERE).short_id.startswith("cpu-avx2-2t-1r-")


@pytest.mark.parametrize("field", HERE)
def test_environments_that_differ_in_one_field_have_other_short_names(field):
    value = HERE[field] + 1 if isinstance(HERE[field], int) else HERE[field] + "!"
    assert Environment(**HERE | {field: value}).short_id != Environment(**HERE).short_id
