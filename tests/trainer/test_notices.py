"""What the training loop does about notices and hints, in this process; and the time that a hook may take."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.policy.save_interval import LastSave
from segue.records import StopReason
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from segue.testing.faulty_store import FaultyStore
from segue.trainer.attempt import run_attempt
from segue.trainer.safe_points import hook_seconds
from tests.recipes import noticing

NOTICING = "tests.recipes.noticing:build"


@pytest.fixture
def board():
    return NoticeBoard(SystemClock())


@pytest.fixture
def train(open_log, board, monkeypatch):
    """Trains an attempt in this process, where `after` says what happens after a step; gives log and report."""

    def run(spec, *, after=None, fails=lambda operation, key: False):
        runlog, clock = open_log(spec), SystemClock()
        monkeypatch.setattr(noticing, "after", after or {})
        report = run_attempt(
            Assignment(spec=spec, plan=decide_next(runlog, spec, clock=clock).plan),
            runlog=runlog,
            board=board,
            clock=clock,
            shards=InlineWriter([FaultyStore(runlog.store, fails=fails)]),
        )
        return runlog, report

    return run


def committed(runlog):
    return [checkpoint.manifest.step for checkpoint in read_history(runlog).checkpoints]


def test_each_hint_saves_once_training_goes_on_and_the_result_is_that_of_an_undisturbed_run(
    train, make_spec, open_log, board, tmp_path
):
    fields = {"recipe": NOTICING, "checkpoints": {"every_steps": 1000, "keep": 9}}
    undisturbed, _ = train(make_spec(run_id="undisturbed", **fields, config={"hook": "draw"}))
    notes = tmp_path / "notes"
    spec = make_spec(run_id="disturbed", **fields, config={"hook": "draw", "notes": str(notes)})

    def hint():
        board.hint("rebalance")

    def hint_again():
        while committed(open_log(spec)) != [7]:  # While a save is being written, the next one waits.
            time.sleep(0.01)
        hint()

    runlog, report = train(spec, after={7: hint, 20: hint_again})
    assert (report.stop_reason, report.notice) == (StopReason.FINISHED, None)
    assert committed(undisturbed) == [40]
    first, second, last = committed(runlog)
    assert (first, last) == (7, 40)
    assert second >= 20  # Later where the writer has committed the save before, but not yet said so.
    assert notes.read_text() == "rebalance inf rank0\n" * 2
    ends = [read_history(log).newest.manifest.components for log in (undisturbed, runlog)]
    names = [name for name in ends[0] if name.startswith(("model", "optimizer", "rng", "modes"))]
    assert len(names) > 5
    assert [ends[0][name] for name in names] == [ends[1][name] for name in names]


def test_a_hint_at_a_step_that_was_just_saved_saves_nothing_more(train, make_spec, board):
    spec = make_spec(recipe=NOTICING, steps=20, config={"hook": "raise"}, checkpoints={"every_steps": 1000})
    board.hint("rebalance")  # At step 0, where there is nothing to save.
    runlog, report = train(spec)
    assert (report.stop_reason, committed(runlog)) == (StopReason.FINISHED, [20])


def test_a_notice_that_was_withdrawn_before_the_safe_point_stops_nothing(train, make_spec, board):
    board.leave("azure", grace_seconds=30)
    board.withdraw("azure")
    _, report = train(make_spec(recipe=NOTICING))
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 40)


def test_a_notice_on_which_the_attempt_ends_is_in_its_report_though_it_is_withdrawn_then(train, make_spec, board):
    spec = make_spec(recipe=NOTICING, config={"hook": "nothing"}, checkpoints={"every_steps": 1000})
    late = []

    def fails(operation, key):
        late.append(board.withdraw("azure"))  # While the last checkpoint is being written.
        return False

    _, report = train(spec, after={7: lambda: board.leave("azure", grace_seconds=30)}, fails=fails)
    assert (report.stop_reason, report.to_step, report.notice.kind) == (StopReason.NOTICE, 7, "azure")
    assert late
    assert not any(late)


@pytest.mark.parametrize(
    ("first", "reason"), [("orphaned", StopReason.NOTICE), ("recall", StopReason.BOUND), ("aws", StopReason.NOTICE)]
)
def test_the_first_notice_is_the_reason_and_the_nearest_deadline_the_notice(train, make_spec, board, first, reason):
    spec = make_spec(recipe=NOTICING, checkpoints={"every_steps": 1000})

    def leave_both():
        board.leave(first, grace_seconds=NO_KILL_COMING_SECONDS)
        board.leave("sigterm", grace_seconds=25)

    _, report = train(spec, after={7: leave_both})
    assert (report.stop_reason, report.notice.kind, report.notice.grace_seconds) == (reason, "sigterm", 25)
    assert report.checkpoint.step == 7


@pytest.mark.matrix
def test_a_kill_that_is_announced_while_an_orphan_waits_for_its_store_leaves_time_for_the_report(
    train, make_spec, board
):
    spec = make_spec(recipe=NOTICING, steps=1000, grace_seconds=2)
    refused = iter(range(10**9))

    def fails(operation, key):
        if not key.endswith(".safetensors"):
            return False
        if next(refused) == 1:
            board.leave("sigterm", grace_seconds=2)
        return True

    runlog, report = train(
        spec, after={7: lambda: board.leave("orphaned", grace_seconds=NO_KILL_COMING_SECONDS)}, fails=fails
    )
    (entry,) = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, ReportEntry)]
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, "sigterm")
    # Not after an hour; a busy machine may be a little late.
    assert entry.written_at < report.notice.received_at + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("seconds_left", "expected", "waits"),
    [
        pytest.param(None, None, 5.0, id="no kill is known"),
        pytest.param(3600.0, 10.0, 5.0, id="much time"),
        pytest.param(25.0, 7.0, 2.5, id="a tenth of the time"),
        pytest.param(25.0, 16.8, 1.0, id="what the last save leaves"),
        pytest.param(25.0, 17.5, 0.0, id="the last save needs all of it"),
        pytest.param(25.0, None, 2.5, id="nothing to save"),
        pytest.param(0.0, None, 0.0, id="no time"),
        pytest.param(-3.0, None, -3.0, id="the machine is late"),
    ],
)
def test_the_hook_may_take_what_the_last_checkpoint_does_not_need(seconds_left, expected, waits):
    last_save = None if expected is None else LastSave(True, expected, "-")
    assert hook_seconds(seconds_left, last_save) == pytest.approx(waits)


def test_where_no_save_fits_the_hook_gets_its_share_nevertheless():
    assert hook_seconds(20.0, LastSave(False, 30.0, "-")) == pytest.approx(2.0)
