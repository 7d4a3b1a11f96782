"""The chaos benchmark's judge can fail: every figure is shown with a log that was damaged or made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.chaos.conduct import passed
from benchmarks.chaos.judge import RunJudge, doubled_steps, seconds_late
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.records import CheckpointRef
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, QuarantineEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from segue.trainer.attempt import run_attempt

GOOD = {
    "runs": 1,
    "finished": 1,
    "final_identical": True,
    "late": 0,
    "commits_lost": 0,
    "doubled_steps": 0,
    "stuck": 0,
    "processes_left": 0,
    "problems": [],
}


@pytest.fixture
def trained(make_spec, open_log, tmp_path):
    """A run that one attempt trained to its goal: its store, its judge, and the digests of its end."""
    store = LocalStore(tmp_path / "store").create()
    spec = make_spec()
    plan = decide_next(open_log(spec), spec, clock=SystemClock()).plan
    run_attempt(
        Assignment(spec=spec, plan=plan),
        runlog=RunLog(store, spec.run_id),
        board=NoticeBoard(SystemClock()),
        clock=SystemClock(),
        shards=InlineWriter([store]),
    )
    judge = RunJudge(spec, lambda: RunLog(LocalStore(tmp_path / "store"), spec.run_id))
    judge.look()
    return store, judge, judge.final_state()


def commits_of(store):
    log = RunLog(store, "tiny").reload()
    return [slot for slot in log.slots if isinstance(slot.entry, CommitEntry)]


def test_a_sound_run_is_judged_sound(trained):
    store, judge, expected = trained
    found = judge.finish(expected)
    assert (found.is_finished, found.is_identical, found.problems) == (True, True, [])
    assert (found.commits_lost, found.doubled_steps, found.late_seconds) == (0, 0, 0.0)
    assert found.commits == len(commits_of(store)) > 0


@pytest.mark.matrix
@pytest.mark.parametrize("which", [0, -1])
def test_a_commit_record_that_was_seen_and_is_gone_is_a_lost_commit(trained, which):
    store, judge, expected = trained
    store.delete([keys.log_key("tiny", commits_of(store)[which].number)])
    found = judge.finish(expected)
    assert found.commits_lost == 1
    assert any("is gone: commit" in problem for problem in found.problems)


@pytest.mark.matrix
def test_a_log_that_was_replaced_by_a_shorter_one_has_lost_its_commits(trained):
    store, judge, expected = trained
    commits = commits_of(store)
    store.delete([item.key for item in store.list_objects("tiny/log/")][commits[0].number :])
    assert judge.finish(expected).commits_lost == len(commits) > 0


@pytest.mark.matrix
def test_a_checkpoint_that_does_not_read_back_is_a_lost_commit(trained):
    store, judge, expected = trained
    newest = read_history(RunLog(store, "tiny")).newest
    store.delete([f"tiny/{newest.manifest.shards[0].key}"])
    assert judge.finish(expected).commits_lost == 1


def test_a_checkpoint_that_was_set_aside_without_need_is_a_lost_commit(trained):
    store, judge, expected = trained
    log = RunLog(store, "tiny").reload()
    slot = commits_of(store)[-1]
    ref = CheckpointRef(slot=slot.number, step=slot.entry.manifest.step, attempt_id=slot.entry.attempt_id)
    facts = {"slot": slot.number, "checkpoint": ref, "reason": "for no reason"}
    log.append(lambda stamp: QuarantineEntry.model_validate(stamp(epoch=0) | facts))
    assert judge.finish(expected).commits_lost == 1


def test_other_final_weights_are_not_identical(trained):
    _, judge, expected = trained
    name = next(iter(expected))
    assert not judge.finish(expected | {name: "0" * 64}).is_identical


def test_rows_that_the_loss_curve_lacks_are_a_problem(trained):
    store, judge, expected = trained
    store.delete([item.key for item in store.list_objects("tiny/metrics/")])
    assert "the loss curve lacks 40 steps, first 1" in judge.finish(expected).problems


def made_commit(template: CommitEntry, *, step: int, epoch: int, attempt: str, parent: int | None) -> CommitEntry:
    ref = None if parent is None else CheckpointRef(slot=1, step=parent, attempt_id="earlier")
    manifest = template.manifest.model_copy(update={"step": step, "parent": ref})
    return template.model_copy(update={"epoch": epoch, "attempt_id": attempt, "manifest": manifest})


def test_steps_that_a_fenced_attempt_commits_are_doubled(trained):
    template = commits_of(trained[0])[0].entry
    first = made_commit(template, step=10, epoch=1, attempt="a", parent=None)
    second = made_commit(template, step=20, epoch=2, attempt="b", parent=10)
    late = made_commit(template, step=15, epoch=1, attempt="a", parent=None)
    assert doubled_steps([first, second]) == 0
    assert doubled_steps([first, second, late]) == 5


def test_steps_that_two_lineages_commit_are_doubled(trained):
    template = commits_of(trained[0])[0].entry
    first = made_commit(template, step=30, epoch=1, attempt="a", parent=None)
    from_an_older = made_commit(template, step=40, epoch=2, attempt="b", parent=10)
    assert doubled_steps([first, from_an_older]) == 20


@pytest.mark.matrix
def test_a_step_that_one_attempt_commits_twice_is_doubled(trained):
    template = commits_of(trained[0])[0].entry
    once = made_commit(template, step=10, epoch=1, attempt="a", parent=None)
    assert doubled_steps([once, once]) == 1


@pytest.mark.matrix
def test_a_save_that_a_later_attempt_commits_for_a_killed_one_is_not_doubled(trained):
    template = commits_of(trained[0])[0].entry
    first = made_commit(template, step=10, epoch=1, attempt="a", parent=None)
    adopted = made_commit(template, step=20, epoch=2, attempt="a", parent=None)
    own = made_commit(template, step=30, epoch=2, attempt="b", parent=20)
    assert doubled_steps([first, adopted, own]) == 0


def test_late_is_counted_from_the_commit_of_the_goal(trained):
    end = datetime(2026, 1, 1, 12, tzinfo=UTC)
    entries = [slot.entry.model_copy(update={"written_at": end}) for slot in commits_of(trained[0])]
    assert seconds_late(entries, steps=40, deadline=end - timedelta(seconds=7)) == 7.0
    assert seconds_late(entries, steps=40, deadline=end + timedelta(seconds=7)) == 0.0
    assert seconds_late(entries, steps=41, deadline=end - timedelta(seconds=7)) == 0.0
    assert seconds_late(entries, steps=40, deadline=None) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"finished": 0},
        {"runs": 0, "finished": 0},
        {"final_identical": False},
        {"late": 1},
        {"commits_lost": 1},
        {"doubled_steps": 1},
        {"stuck": 1},
        {"processes_left": 1},
        {"problems": ["one"]},
    ],
)
def test_a_report_passes_only_without_any_of_these(wrong):
    assert passed(GOOD)
    assert not passed(GOOD | wrong)
