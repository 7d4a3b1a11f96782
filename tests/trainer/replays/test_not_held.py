"""A rehearsal for which there is too little memory is not held, and the log says so."""

from __future__ import annotations

import signal

from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.records import VerdictKind
from segue.reports.run_facts import rehearsal_text
from segue.runlog.history import read_history
from segue.trainer.rehearsal import ResumeRehearsal, is_due
from segue.trainer.replays.replay_process import why_no_room
from tests.support.forked_trainers import next_plan
from tests.support.observers import stop_when_proven

TOO_MUCH = 2**60


def test_a_rehearsal_without_room_is_recorded_and_not_tried_again_and_the_run_goes_on(fork_server, make_spec, open_log):
    spec = make_spec(steps=100, checkpoints={"every_steps": 20}, continuity={"rehearsal": "stop"})
    runlog = open_log(spec)
    off = spec.model_copy(update={"continuity": spec.continuity.model_copy(update={"rehearsal": "off"})})
    fork_server.run_attempt(runlog, off, observer=stop_when_proven(signal.SIGKILL))
    assignment = Assignment(spec=spec, plan=next_plan(runlog, spec))
    rehearsal = ResumeRehearsal(assignment, runlog, is_due=True, clock=SystemClock())
    rehearsal.begin(state_bytes=TOO_MUCH)
    rehearsal.check()
    history = read_history(runlog.reload())
    (drill,) = history.drills
    assert drill.verdict.kind is VerdictKind.UNVERIFIED
    assert "not held" in rehearsal_text(spec, history)
    assert "segue drill" in drill.verdict.findings[0].fix
    assert not is_due(assignment, history, ranks=1)
    assert next_plan(runlog, spec) is not None


def test_what_is_too_small_is_said_with_both_sizes():
    assert why_no_room(0) == ""
    assert "GB of memory are left, and a second process would take 1152921504.6 GB" in why_no_room(TOO_MUCH)
