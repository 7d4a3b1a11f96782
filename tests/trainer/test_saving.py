"""Saves during training: the same bytes for every kind of staging, and limited work at risk with a failing store."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.committer import IncrementalBase, Writer
from segue.checkpoints.saving.save_job import Author
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter, ProcessWriter
from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next
from segue.curves.curve_rows import Curve
from segue.errors import WorkAtRiskError
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.policy.save_interval import Life
from segue.records import Environment, StopReason, VerdictKind, WitnessRow
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import CheckpointSpec
from segue.stores import LocalStore
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from segue.testing.recipes import tiny
from segue.trainer.attempt import run_attempt
from segue.trainer.claim import claim_run
from segue.trainer.health.activity import Activity
from segue.trainer.ranks.group import RankGroup
from segue.trainer.saving import Saving
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import changed_by_optimizer, components_of
from segue.trainer.workloads.steps.step import begin_step
from tests.recipes.hard_to_copy import HABITS

RISK = {"max_work_at_risk_seconds": 1800}
HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


def train(spec, runlog, *, fails=lambda operation, key: False, board=None, shards=None):
    """The next attempt, in this process; its shards go to a store that fails where `fails` is true, or to `shards`."""
    clock = SystemClock()
    plan = decide_next(runlog, spec, clock=clock).plan
    return run_attempt(
        Assignment(spec=spec, plan=plan),
        runlog=runlog,
        board=board or NoticeBoard(clock),
        clock=clock,
        shards=shards or InlineWriter([FaultyStore(runlog.store, fails=fails)]),
    )


class DiesBeforeItsAnswer(ProcessWriter):
    """Its process dies when the second save is stored, before the trainer knows."""

    saves = 0

    def write(self, staged, save):
        written = super().write(staged, save)
        self.saves += 1
        if self.saves == 2:
            os.kill(self.pid, signal.SIGKILL)
            return super().write(staged, save)
        return written


@pytest.mark.matrix
@pytest.mark.parametrize("full_every", [1, 9])
def test_a_save_whose_writer_died_is_stored_again_and_leaves_nothing_behind(make_spec, open_log, full_every):
    spec = make_spec(steps=60, checkpoints={"every_steps": 10, "keep": 9, "full_every": full_every})
    runlog = open_log(spec)
    shards = DiesBeforeItsAnswer([spec.store])
    assert train(spec, runlog, shards=shards).stop_reason is StopReason.FINISHED
    assert shards.saves >= 2
    history = read_history(runlog)
    used = {shard.key for checkpoint in history.checkpoints for shard in checkpoint.manifest.shards}
    assert sum(".try-2" in key for key in used) == 2, "the shard and the index of one save"
    stored = {item.key.removeprefix("tiny/") for item in runlog.store.list_objects("tiny/attempts/")}
    assert {key for key in stored if "/rank-0" in key and ".commit." not in key} == used
    for checkpoint in history.checkpoints:
        read_checkpoint(runlog.store, run_id="tiny", manifest=checkpoint.manifest)


@pytest.mark.matrix
def test_saves_by_epochs_are_at_the_ends_of_epochs_and_add_to_the_others(make_spec, open_log):
    pauses = {"pause_seconds": 0.05}  # So that each save is over before the next is due.
    spec = make_spec(config=pauses, checkpoints={"every_steps": 20, "every_epochs": 2, "keep": 9, "staging_buffers": 2})
    runlog = open_log(spec)
    assert train(spec, runlog).stop_reason is StopReason.FINISHED
    found = [(c.manifest.step, c.manifest.epoch) for c in read_history(runlog).checkpoints]
    assert found == [(16, 2), (20, 2), (32, 4), (40, 5)]  # Eight steps an epoch.


@pytest.fixture
def commits_of(make_spec, open_log):
    """Trains a recipe with a way of changing its state; returns the digests of its commits by step."""

    def run(habit, **checkpoints):
        spec = make_spec(
            run_id=f"r{checkpoints.get('staging_buffers', 1)}-{checkpoints['staging']}",
            recipe="tests.recipes.hard_to_copy:build",
            steps=24,
            config={"habit": habit},
            checkpoints={"every_steps": 5, "keep": 9} | checkpoints,
        )
        runlog = open_log(spec)
        report = train(spec, runlog)
        assert report.stop_reason is StopReason.FINISHED, report.failure
        return {c.manifest.step: c.manifest.components for c in read_history(runlog).checkpoints}

    return run


@pytest.mark.matrix
@pytest.mark.parametrize("habit", HABITS)
def test_a_run_with_overlapped_staging_commits_the_very_bytes_of_one_that_blocks(commits_of, habit):
    blocking = commits_of(habit, staging="blocking", staging_buffers=2)
    overlapped = commits_of(habit, staging="overlapped", staging_buffers=2)
    assert overlapped[24] == blocking[24]
    changed = {
        step: [name for name, digest in overlapped[step].items() if digest != blocking[step][name]]
        for step in overlapped.keys() & blocking.keys()
    }
    assert not any(changed.values()), changed


@pytest.mark.matrix
def test_a_recipe_that_always_changes_its_state_during_the_copy_is_committed_correctly(commits_of):
    # Two buffers: the repetition does not wait until the writer has given the first one back.
    committed = commits_of("normed_in_place", staging="overlapped", staging_buffers=2, max_work_at_risk_seconds=1e9)
    assert min(committed) == 6  # The save of step 5 is lost to detect it, and repeated at once.


def test_a_save_is_finished_before_an_update_also_when_a_scaler_skips_it():
    recipe, waited, updated = tiny({}), [], []
    recipe.scheduler, inner = None, recipe.loss
    recipe.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    recipe.loss = lambda model, batch: 1e6 * inner(model, batch)
    recipe.optimizer.register_step_pre_hook(lambda *_: updated.append(True))
    begin_step(recipe, [next(iter(recipe.data))], step=1, before_update=lambda: waited.append(True)).read()
    assert (waited, updated) == ([True], [])


def shards_after(step):
    """A predicate: whether a key is a shard of a later step."""
    return lambda key: key.endswith(".safetensors") and int(key.split("step-")[1][:9]) > step


@pytest.mark.matrix
def test_with_an_unreachable_store_training_continues_as_long_as_allowed_and_the_run_resumes_from_its_last_commit(
    make_spec, open_log
):
    spec = make_spec(
        steps=100_000,
        config={"pause_seconds": 0.01},
        checkpoints={"every_steps": 10, "max_work_at_risk_seconds": 1.5},
    )
    runlog, is_away = open_log(spec), shards_after(10)
    with pytest.raises(WorkAtRiskError, match="injected") as raised:
        train(spec, runlog, fails=lambda operation, key: operation == "put" and is_away(key))
    assert raised.value.at_risk_seconds > raised.value.allowed_seconds == 1.5
    history = read_history(runlog)
    assert history.committed_step == 10
    beat = last_heartbeat(runlog, history.attempts[0])
    assert beat.step > history.committed_step + 1
    assert "injected" in beat.trouble
    assert report_or_lost(runlog, history.open_plan, TrainerEnd(1)).stop_reason is StopReason.LOST
    report = train(spec.model_copy(update={"steps": 40}), runlog)
    assert (report.stop_reason, report.from_step) == (StopReason.FINISHED, 10)
    assert read_history(runlog).attempts[-1].verdict.kind is VerdictKind.EXACT


@pytest.mark.matrix
def test_training_continues_when_the_store_recovers_in_time(make_spec, open_log):
    spec = make_spec(steps=120, config={"pause_seconds": 0.01}, checkpoints={"every_steps": 10})
    runlog, faults = open_log(spec), iter(range(2))
    report = train(
        spec, runlog, fails=lambda op, key: op == "put" and shards_after(10)(key) and next(faults, None) is not None
    )
    assert (report.stop_reason, report.lost_steps, report.note) == (StopReason.FINISHED, 0, None)
    assert last_heartbeat(runlog, read_history(runlog).attempts[0]).trouble is None


@pytest.mark.matrix
def test_an_unreachable_store_after_a_notice_leaves_time_for_the_report(make_spec, open_log):
    spec = make_spec(steps=100_000, config={"pause_seconds": 0.01}, grace_seconds=8)
    board, runlog = NoticeBoard(SystemClock()), open_log(spec)

    def is_away(operation, key):
        if shards_after(10)(key):
            board.leave("file", grace_seconds=8)
        return operation == "put" and shards_after(10)(key)

    report = train(spec, runlog, fails=is_away, board=board)
    (entry,) = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, ReportEntry)]
    assert entry.report == report
    assert entry.written_at < report.notice.received_at + timedelta(seconds=8)
    assert (report.stop_reason, report.checkpoint.step) == (StopReason.NOTICE, 10)
    assert "injected" in report.note


def test_an_unreachable_store_ends_the_attempt_also_at_the_goal(make_spec, open_log):
    spec = make_spec(steps=12, checkpoints={"every_steps": 10, "max_work_at_risk_seconds": 0.5})
    runlog, clock, refused_at = open_log(spec), SystemClock(), []

    def is_away(operation, key):
        """From the first save on, for a minute: this test ends even if the attempt would wait for ever."""
        if operation != "put" or "rank-0" not in key:
            return False
        refused_at.append(clock.monotonic())
        return refused_at[-1] - refused_at[0] < 60

    with pytest.raises(WorkAtRiskError):
        train(spec, runlog, fails=is_away)


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [({"every_steps": 10}, "every 10 steps, as configured"), ({}, "first save, to measure its cost")],
)
def test_the_heartbeat_reports_the_save_interval_and_its_reason(make_spec, open_log, checkpoints, said):
    spec = make_spec(checkpoints=checkpoints)
    runlog = open_log(spec)
    train(spec, runlog)
    assert said in last_heartbeat(runlog, read_history(runlog).attempts[0]).cadence


def test_a_fenced_attempt_writes_nothing_again_that_may_have_been_adopted(make_spec, open_log):
    spec = make_spec(checkpoints={"every_steps": 10})
    runlog = open_log(spec)
    written = []

    def is_fenced_meanwhile(operation, key):
        if operation != "put":
            return False
        written.append(key)
        if len(written) == 1:
            other = open_log(spec)
            declare_lost(other, read_history(other).open_plan, why="no heartbeat")
            plan = decide_next(other, spec, clock=SystemClock()).plan
            claim_run(other, Assignment(spec=spec, plan=plan), environment=HERE)
        return True

    assert train(spec, runlog, fails=is_fenced_meanwhile).stop_reason is StopReason.FENCED
    assert len(written) == len(set(written)), "each was tried once"


def test_a_report_holds_the_usual_duration_of_a_save(make_spec, open_log):
    spec = make_spec(checkpoints={"every_steps": 10}, config={"pause_seconds": 0.02})
    runlog = open_log(spec)
    train(spec, runlog)
    report = read_history(runlog).attempts[0].report
    assert 0 < report.save_seconds < report.seconds
    assert 0 < report.save_cost_seconds < report.train_seconds


@contextmanager
def saves(folder, clock, *, fails=lambda operation, key: False, evaluate=None, life=None, **checkpoints):
    """An attempt's saves without its steps, on a clock that the test moves; gives progress, saves and writer."""
    recipe, progress, spec = tiny({}), Progress(), CheckpointSpec(**checkpoints)
    staging, runlog = StagingArea(staging_buffers=spec.staging_buffers), RunLog(LocalStore(folder).create(), "tiny")
    writer = Writer(
        runlog,
        Author("seg000-a1-e1", 1, parent=None, environment=HERE),
        shards=InlineWriter([FaultyStore(runlog.store, fails=fails)]),
        base=IncrementalBase(),
        pruner=Pruner(epoch=1, retention=spec, tiers=[runlog.store]),
        release=staging.release,
        clock=clock,
    )
    names = {"run": "tiny", "attempt_id": "seg000-a1-e1", "capacity": "spot", "environment": "cpu"}
    curve = Curve(**names, segment=0, attempt=1, from_checkpoint=0)
    row = WitnessRow(step=1, loss=1, grad_norm=1, param_norm=1, lr=(), batch_fingerprint="", input_fingerprint="")
    curve.add(row, epoch=0, samples_seen=1, step_seconds=1.0, wall_time=clock.now())
    saving = Saving(
        SimpleNamespace(
            spec=SimpleNamespace(checkpoints=spec),
            activity=Activity(clock),
            clock=clock,
            ranks=SimpleNamespace(is_leader=True),
            group=RankGroup(),
        ),
        SimpleNamespace(
            components=components_of(recipe, progress, name="tiny"),
            progress=progress,
            has_metric=evaluate is not None,
            is_metric_known=False,
            evaluate=evaluate,
            wants_save=lambda step: False,
            epoch=0,
            changed_by_optimizer=lambda: changed_by_optimizer(recipe.optimizer),
            look_outside=lambda trees: (),
            structure_changes=lambda: (),
        ),
        curve=curve,
        staging=staging,
        writer=writer,
        life=life,
    )
    try:
        yield progress, saving, writer
    finally:
        saving.close()
        writer.close()
        staging.close()


def test_the_time_of_an_evaluation_is_a_cost_of_its_save_and_no_part_of_its_duration(tmp_path):
    clock = FakeClock()

    def evaluate():
        clock.advance(20)
        return 0.5

    with saves(tmp_path, clock, evaluate=evaluate, life=Life()) as it:
        progress, saving, writer = it
        for progress.step in (10, 20, 30):
            saving.save(evaluate=True)
            assert writer.wait(60)
            saving.is_due()
        assert saving.in_flight.usual.evaluate_seconds == pytest.approx(20)
        assert saving.in_flight.usual.cost_seconds == pytest.approx(20, abs=0.1)
        assert saving.in_flight.usual.save_seconds < 1
        # Young/Daly for 0.5 s is 85 s, for 20 s more than eight minutes.
        assert 500 < saving.schedule.cadence.interval_seconds < 560
        assert "for a save cost of 20 s (" in saving.schedule.cadence.reason
        assert "for the save and 20 s for `evaluate`)" in saving.schedule.cadence.reason
        assert saving.schedule.seconds_to_next == pytest.approx(saving.schedule.cadence.interval_seconds)


def test_what_is_captured_is_committed_while_the_evaluation_goes_on_and_no_metric_is_waited_for(tmp_path):
    goes_on = threading.Event()

    def evaluate():
        goes_on.wait(60)
        return 0.5

    with saves(tmp_path, FakeClock(), evaluate=evaluate) as it:
        progress, saving, writer = it
        progress.step = 10
        answering = threading.Thread(target=answer, args=(saving, writer, goes_on))
        answering.start()
        saving.save(evaluate=True)
        answering.join(60)
        assert writer.last_commit.step == 10
    log = RunLog(LocalStore(tmp_path), "tiny").reload()
    assert read_history(log).newest.manifest.metric is None


def answer(saving, writer, goes_on):
    while saving._activity.mark.kind != "evaluating":
        SystemClock().sleep(0.001)
    assert writer.last_commit is None
    saving.commit_captured(60)
    assert writer.last_commit is not None
    goes_on.set()


def test_an_evaluation_that_raises_leaves_a_checkpoint_without_a_metric(tmp_path):
    def evaluate():
        raise ArithmeticError("no metric")

    with saves(tmp_path, FakeClock(), evaluate=evaluate) as it:
        progress, saving, writer = it
        progress.step = 10
        with pytest.raises(ArithmeticError):
            saving.save(evaluate=True)
        assert writer.wait(60)
        assert writer.last_commit.step == 10


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_state_that_is_held_during_an_evaluation_is_committed_only_on_a_notice(tmp_path, is_noticed):
    with saves(tmp_path, FakeClock(), evaluate=lambda: 0.5) as it:
        progress, saving, writer = it
        progress.step = 7
        assert not saving.is_all_captured
        with saving.held():
            assert saving.is_all_captured
            if is_noticed:
                saving.commit_captured(60)
        assert writer.wait(60)
        assert (writer.last_commit.step if writer.last_commit else None) == (7 if is_noticed else None)
        assert saving.has_room


def test_a_save_that_becomes_due_during_the_previous_one_is_counted_once_and_done_later(tmp_path):
    way_free = threading.Event()
    with saves(tmp_path, FakeClock(), fails=lambda *_: not way_free.wait(60), every_steps=10) as it:
        progress, saving, writer = it
        progress.step = 10
        assert saving.is_due()
        saving.save(evaluate=False)
        for progress.step, is_due in {11: False, 19: False, 20: True, 21: True, 25: True}.items():
            assert (saving.is_due(), saving.has_room) == (is_due, False)
            if is_due:
                saving.schedule.delay()
        assert saving.schedule.delayed == 1
        way_free.set()
        assert writer.wait(60)
        assert saving.is_due()
        assert saving.has_room
        saving.save(evaluate=False)
        assert writer.wait(60)
        assert (writer.last_commit.step, saving.schedule.delayed) == (25, 1)


def test_one_failed_write_of_a_save_with_a_long_interval_does_not_end_the_attempt(tmp_path):
    """The save interval may be as long as the allowed risk: then all of it is at risk when a save begins."""
    clock, faults, tried = FakeClock(), iter([True]), threading.Event()

    def fails(operation, key):
        failing = next(faults, False)
        tried.set()
        return failing

    with saves(tmp_path, clock, fails=fails, every_seconds=1900, **RISK) as it:
        progress, saving, writer = it
        progress.step = 10
        clock.advance(1900)
        assert saving.is_due()
        saving.save(evaluate=False)
        assert tried.wait(60)
        while writer.trouble is None and writer.last_commit is None:
            SystemClock().sleep(0.001)
        progress.step = 11
        assert not saving.is_due()
        assert writer.wait(60)
        assert writer.last_commit.step == 10


def test_a_store_that_neither_accepts_nor_refuses_a_save_ends_the_attempt(tmp_path):
    clock, way_free = FakeClock(), threading.Event()
    with saves(tmp_path, clock, fails=lambda *_: not way_free.wait(60), every_steps=10, **RISK) as it:
        progress, saving, _ = it
        try:
            progress.step = 10
            saving.save(evaluate=False)
            clock.advance(1000)
            progress.step = 20
            saving.refuse_risk()
            clock.advance(2 * RISK["max_work_at_risk_seconds"])
            with pytest.raises(WorkAtRiskError):
                saving.is_due()
        finally:
            way_free.set()


@pytest.mark.parametrize("staging_buffers", [1, 2])
def test_the_decision_on_a_last_save_includes_the_save_that_is_being_written(tmp_path, staging_buffers):
    clock, way_free = FakeClock(), threading.Event()

    def takes_long(operation, key):
        if operation == "put" and key.endswith(".safetensors"):
            clock.advance(100)
            return "step-000000030" in key and not way_free.wait(60)
        return False

    with saves(tmp_path, clock, fails=takes_long, every_steps=10, staging_buffers=staging_buffers) as it:
        progress, saving, writer = it
        try:
            for progress.step in (10, 20, 30):
                assert saving.is_due()
                saving.save(evaluate=False)
                assert progress.step == 30 or writer.wait(60)
            assert "the save in flight" in saving.in_flight.on_notice(seconds_left=120).reason
        finally:
            way_free.set()


@pytest.mark.parametrize(
    ("saved_at", "now", "is_refused"), [(10, 70, False), (10, 99, False), (60, 105, False), (60, 111, True)]
)
def test_a_save_that_the_store_refuses_gets_half_of_the_time_that_may_be_at_risk(tmp_path, saved_at, now, is_refused):
    clock = FakeClock()
    refuses = {"fails": lambda operation, key: operation == "put", "max_work_at_risk_seconds": 100}
    with saves(tmp_path, clock, **refuses) as (progress, saving, writer):
        clock.advance(saved_at)
        progress.step = 10
        saving.save(evaluate=False)
        give_up_at = time.monotonic() + 60
        while writer.trouble is None:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        clock.advance(now - saved_at)
        with pytest.raises(WorkAtRiskError, match="injected") if is_refused else nullcontext():
            saving.refuse_risk()
