"""What trackers are sent: each committed step once, whatever is killed; and that no tracker disturbs a run."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing as mp
import os
import signal
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import segue
from segue.checkpoints.loading.quarantine import quarantine
from segue.controller.local_run import run_here
from segue.errors import SpecError
from segue.integrations.mirror import Mirror
from segue.integrations.tensorboard import TensorBoardTracker
from segue.integrations.tracker import CommittedRow, TrackedEnd, TrackedRun
from segue.integrations.tracking import open_trackers, tracking, usable_trackers
from segue.runlog.history import read_history
from segue.spec import StoreSpec
from tests.support.command import Desk
from tests.support.trackers import FileTracker, HangingTracker

TRACKERS = "tests.support.trackers"
pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")


@pytest.fixture
def tracker(tmp_path) -> FileTracker:
    return FileTracker(file=str(tmp_path / "tracked.jsonl"))


def steps_in(tracker: FileTracker) -> list[int]:
    return [line["step"] for line in tracker.lines() if "step" in line]


@pytest.mark.matrix
def test_each_committed_step_is_sent_once_with_the_numbers_of_the_curve(resumed, tracker):
    Mirror(resumed.log, tracker).update()
    assert steps_in(tracker) == list(range(1, 61))
    frame = segue.curve(resumed.log)
    for name in ("loss", "lr", "grad_norm", "param_norm", "step_seconds"):
        sent = [line.get(name, math.nan) for line in tracker.lines()]
        np.testing.assert_array_equal(sent, frame[name].to_numpy(), err_msg=name)
    measured = [line["step"] for line in tracker.lines() if "param_norm" in line]
    assert measured == list(frame["step"][frame["param_norm"].notna()])  # A number that was not measured is not sent.
    assert measured
    Mirror(resumed.log, tracker).update()
    assert steps_in(tracker) == list(range(1, 61))


@pytest.mark.matrix
def test_steps_that_are_done_again_from_an_older_checkpoint_are_not_sent_again(
    fork_server, make_spec, open_log, tracker
):
    spec = make_spec(steps=40, config={"pause_seconds": 0.02})
    runlog = open_log(spec)
    mirror = Mirror(runlog, tracker)
    mirror.update()
    assert tracker.lines() == []  # Nothing is committed.
    fork_server.run_attempt(runlog, spec.model_copy(update={"steps": 20}))
    mirror.update()
    assert steps_in(tracker) == list(range(1, 21))
    quarantine(runlog, checkpoint=read_history(runlog).newest, reason="doubted", epoch=runlog.highest_epoch)
    fork_server.run_attempt(runlog, spec)
    mirror.update()
    assert steps_in(tracker) == list(range(1, 41))


@pytest.mark.matrix
def test_a_run_is_sent_while_it_trains_and_with_its_end_by_each_tracker(make_spec, open_log, tmp_path, caplog):
    kinds = ("FileTracker", "FailingTracker")
    files = {kind: str(tmp_path / f"{kind}.jsonl") for kind in kinds}
    spec = make_spec(steps=30, trackers={f"{TRACKERS}:{kind}": {"file": file} for kind, file in files.items()})
    with caplog.at_level(logging.WARNING), tracking(spec, open_trackers(spec), every_seconds=0.05, end_seconds=300):
        assert run_here(spec, open_log(spec), on_line=lambda _: None).action == "finished"
    assert "tracker failed, retrying later" in caplog.text
    assert "incomplete" not in caplog.text
    for kind in kinds:
        sent = FileTracker(file=files[kind])
        assert steps_in(sent) == list(range(1, 31))
        (end,) = [line for line in sent.lines() if "status" in line]
        assert end["status"] == "finished"
        assert set(end["files"]) == {"segments.json", "run.png"}
        assert (end["segue.step"], end["segue.segments"], end["segue.preemptions"]) == ("30", "1", "0")


@pytest.mark.matrix
def test_a_tracker_that_hangs_is_left_behind_and_named(resumed, tmp_path, caplog):
    hanging = HangingTracker(file=str(tmp_path / "tracked.jsonl"))
    with caplog.at_level(logging.WARNING), tracking(resumed.history.spec, {"slow": hanging}, end_seconds=0.1):
        pass
    assert (
        "tracker is incomplete name=slow sent_step=0 reason=it does not answer Fix: run `segue track nightly`"
        in caplog.text
    )


def test_a_parent_that_is_ended_waits_for_no_tracker(resumed, tracker, tmp_path):
    hanging = HangingTracker(file=str(tmp_path / "another.jsonl"))
    both = {"slow": hanging, "idle": tracker}
    with pytest.raises(KeyboardInterrupt), tracking(resumed.history.spec, both, every_seconds=3600, end_seconds=3600):
        raise KeyboardInterrupt
    assert tracker.lines() == []


def test_a_run_that_has_begun_goes_on_without_a_tracker_that_cannot_be_opened(make_spec, tmp_path, caplog):
    file = str(tmp_path / "tracked.jsonl")
    spec = make_spec(trackers={"nowhere.at_all:Tracker": {}, f"{TRACKERS}:FileTracker": {"file": file}})
    with caplog.at_level(logging.WARNING):
        assert list(usable_trackers(spec)) == [f"{TRACKERS}:FileTracker"]
    assert "tracker left out name=nowhere.at_all:Tracker reason=" in caplog.text


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "wandb",
            {},
            "'wandb' is not a tracker; use mlflow, tensorboard, or your own tracker as package.module:factory",
        ),
        ("mlflow", {"tracking_uri": "http://me:word@host"}, "mlflow.tracking_uri contains credentials"),
        ("tensorboard", {"dir": "x"}, "unexpected keyword argument 'dir'; it takes: folder"),
        ("nowhere.at_all:Tracker", {}, "it cannot be imported (No module named 'nowhere')"),
        (f"{TRACKERS}:HalfATracker", {}, "it has no method end; segue.integrations.tracker describes the three"),
    ],
)
def test_what_is_no_tracker_is_refused_before_anything_starts(make_spec, name, options, said):
    with pytest.raises(SpecError) as refused:
        open_trackers(make_spec(trackers={name: options}))
    assert said in str(refused.value)
    assert "word@" not in str(refused.value)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    return {name: [(event.step, event.value) for event in shown.Scalars(name)] for name in shown.Tags()["scalars"]}


def send_slowly(resumed_store: str, folder: str, steps: int | None) -> None:
    """Send a step at a time; after so many `steps`, wait without end."""
    from tests.support.resumed_run import read_resumed

    class Slow(TensorBoardTracker):
        def log(self, rows):
            for sent, row in enumerate(rows):
                while sent == steps:
                    time.sleep(1)
                super().log([row])
                time.sleep(0.01)

    Mirror(read_resumed(Path(resumed_store)).log, Slow(folder=folder)).update()


@pytest.mark.soak
def test_tensorboard_shows_each_step_once_though_its_writer_is_killed_again_and_again(resumed, tmp_path):
    folder = tmp_path / "board"
    context = mp.get_context("forkserver")
    for kill in range(4):
        # One that is to be killed never comes to its end, however late this process is.
        steps = 12 if kill < 3 else None
        writer = context.Process(target=send_slowly, args=(str(resumed.store), str(folder), steps))
        writer.start()
        before = newest_step(folder)
        while writer.is_alive() and newest_step(folder) < before + 8:
            time.sleep(0.005)
        if kill < 3:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        if kill == 1:  # The newest record is cut off in its middle, as where the machine dies with the process.
            torn = max(folder.glob("nightly/events.*"), key=lambda file: file.stat().st_mtime)
            os.truncate(torn, torn.stat().st_size - 5)
    shown = scalars(folder / "nightly")
    frame = segue.curve(resumed.log)
    assert [step for step, _ in shown["loss"]] == list(range(1, 61))
    assert [value for _, value in shown["loss"]] == pytest.approx(list(frame["loss"]), rel=1e-6)
    assert shown.keys() == {"loss", "lr", "grad_norm", "param_norm", "step_seconds"}
    assert len(list(folder.glob("nightly/events.*"))) == 4


def newest_step(folder: Path) -> int:
    from segue.integrations.tensorboard import _steps

    return max(_steps(folder / "nightly"), default=0) if folder.exists() else 0


def test_a_run_id_that_is_used_again_has_a_folder_of_its_own(tmp_path):
    row = CommittedRow(1, datetime(2026, 1, 1, tzinfo=UTC), {"loss": 1.0})
    for day in (1, 2, 1):
        tracker = TensorBoardTracker(folder=str(tmp_path))
        run = TrackedRun("nightly", f"nightly@2026-01-0{day}", params={}, tags={}, store=StoreSpec())
        if tracker.begin(run) == 0:
            tracker.log([row])
        tracker.end(TrackedEnd("finished", "done", row.at))
    assert {folder.name: scalars(folder) for folder in tmp_path.iterdir()} == {
        "nightly": {"loss": [(1, 1.0)]},
        "nightly-2026-01-02": {"loss": [(1, 1.0)]},
    }


def test_the_command_sends_a_run_to_a_tracker_at_any_time(resumed, tmp_path, monkeypatch, capsys):
    desk = Desk(tmp_path, monkeypatch, capsys)
    asked = ("track", "nightly", "--store", str(resumed.store))
    assert "the run spec has no tracker; name one, e.g. --tracker mlflow" in desk.refused(*asked)
    assert "'wandb' is not a tracker" in desk.refused(*asked, "--tracker", "wandb")
    assert "must be name=value (got 'folder')" in desk.refused(*asked, "--tracker", "tensorboard", "--option", "folder")
    asked += ("--tracker", "tensorboard", "--option", "folder=board")
    assert desk.told(*asked) == {"run": "nightly", "trackers": {"tensorboard": 60}}
    assert "tensorboard has every committed step of nightly up to 60" in desk.run(*asked).out
    assert len(scalars(tmp_path / "board" / "nightly")["loss"]) == 60
    failing = (*asked[:4], "--tracker", f"{TRACKERS}:FailingTracker", "--option", f"file={tmp_path / 'f.jsonl'}")
    failed = desk.run(*failing)
    assert (failed.code, failed.out) == (1, "")
    assert "The tracker failed after step 0: ConnectionError: the tracker is away Fix: check" in failed.err
    assert json.loads(desk.run(*asked, "--json").out)["trackers"] == {"tensorboard": 60}


def test_a_value_that_tensorboard_does_not_take_costs_itself_alone_and_is_named_once(tmp_path, caplog):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    tracker = TensorBoardTracker(folder=str(tmp_path))
    run = TrackedRun(run_id="odd", key="odd@1", params={}, tags={}, store=StoreSpec(url="/nowhere"))
    assert tracker.begin(run) == 0
    values = {"loss": 0.5, "acc@5": 1.0, "big": 1e300, "ppl": math.inf, "\ud800": 1.0}
    tracker.log([CommittedRow(step, datetime(2026, 1, 1, tzinfo=UTC), values) for step in (1, 2)])
    assert TensorBoardTracker(folder=str(tmp_path)).begin(run) == 2
    found: dict[str, list[float]] = {}
    for file in (tmp_path / "odd").glob("events*"):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(value.simple_value)
    assert found == {"loss": [0.5] * 2, "acc@5": [1.0] * 2, "big": [math.inf] * 2, "ppl": [math.inf] * 2}
    assert caplog.text.count("metric left out, because TensorBoard refuses it") == 1
