"""Runs the attempt of a local session: the script's own process trains the run in a folder."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next, open_run
from segue.data.config import config_of_environment
from segue.errors import LogMovedError, SessionError
from segue.hosting import Host
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.notices.signals import KINDS
from segue.policy.decide import numbers_of_next
from segue.records import Capacity, SegmentPlan
from segue.runlog.entries import DecisionEntry, Entry
from segue.runlog.history import Attempt, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.trainer.attempt import local_attempt

RUN_ID = "local"
"""The run id of the run in the folder of a local session."""
_NO_GOAL = 2**53
"""The goal of the run in steps, which no run reaches, because the program itself sets the real goal."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def training_in(folder: Path) -> Iterator[Host]:
    """While the block runs, make this process an attempt at the run in the folder. Yield the host of the session.

    Raises:
        SessionError: another process trains in the folder, or this process is one of several ranks.
        BrokenResumeError: the resume does not continue the run in the folder. The block raises this error.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        what = "a local session trains in one process, and this is one of several ranks."
        raise SessionError(what=what, fix="start the script without torchrun, or call segue.session() without local.")
    clock = SystemClock()
    spec = _spec(folder)
    runlog = open_run(spec, clock=clock, accept_drift=True)
    board = NoticeBoard(clock)
    assignment = Assignment(spec=spec, plan=_announced(runlog, spec, folder))
    with _stopped_by_signals(board, spec.grace_seconds):
        try:
            with local_attempt(assignment, runlog=runlog, board=board, clock=clock) as host:
                yield host
            if read_history(runlog).is_finished(spec):
                decide_next(runlog, spec, clock=clock)  # Records that the run is finished; a later start may extend it.
        except SystemExit as end:
            notice = board.read()
            if notice is None or end.code:
                raise
            # The loop has saved and ended, as the signal asked. The process exits with the signal's exit code.
            raise SystemExit(128 + signal.Signals[notice.kind.upper()]) from None


def _spec(folder: Path) -> RunSpec:
    fields = {
        "run_id": RUN_ID,
        "steps": _NO_GOAL,
        "program": {"command": ["python", Path(sys.argv[0]).name.lstrip("-") or "session", *sys.argv[1:]]},
        "store": {"url": str(folder.expanduser().absolute())},
        "config": config_of_environment(),
        "continuity": {"rehearsal": "off"},
    }
    return RunSpec.parse(fields, source="segue.session(local=...)")


def _announced(runlog: RunLog, spec: RunSpec, folder: Path) -> SegmentPlan:
    """If an earlier attempt was killed, declare it lost. Then write the plan of this process's attempt to the log."""
    while True:
        history = read_history(runlog)
        before = history.open_plan
        if before is not None:
            _refuse_living(runlog, history.attempt_of(before.segment, before.attempt), spec, folder)
            declare_lost(runlog, before, why="its process is gone")
            continue
        parent = history.newest.ref if history.newest else None
        segment, attempt = numbers_of_next(history, parent=parent)
        plan = SegmentPlan(
            segment=segment,
            attempt=attempt,
            capacity=Capacity.SPOT,
            deployment=spec.pools.deployment(Capacity.SPOT),
            parent=parent,
            log_id=runlog.log_id,
        )
        facts = {"plan": plan, "action": "run", "reason": "a script was started with a local session"}
        with suppress(LogMovedError):  # Another process wrote to the log first: read the log again.
            runlog.append(partial(_decision, facts), at=history.next_slot)
            return plan


def _decision(facts: Mapping[str, Any], stamp: Stamp) -> Entry:
    return DecisionEntry.model_validate({**stamp(epoch=0), **facts})


def _refuse_living(runlog: RunLog, attempt: Attempt | None, spec: RunSpec, folder: Path) -> None:
    beat = last_heartbeat(runlog, attempt)
    if beat is None or attempt is None:
        return
    if attempt.claim.host == socket.gethostname():
        try:
            is_alive = psutil.Process(beat.trainer_pid).create_time() <= beat.beat_at.timestamp()
        except psutil.Error:
            is_alive = False
    else:
        age_seconds = (SystemClock().now() - beat.beat_at).total_seconds()
        is_alive = age_seconds < spec.liveness.heartbeat_timeout_seconds
    if is_alive and beat.trainer_pid != os.getpid():
        what = f"process {beat.trainer_pid} on {attempt.claim.host} trains in {folder}, at step {beat.step}."
        raise SessionError(what=what, fix="wait until that process has ended, end it, or name another folder.")


@contextmanager
def _stopped_by_signals(board: NoticeBoard, grace_seconds: float) -> Iterator[None]:
    """While the block runs, let the first Ctrl-C or SIGTERM end the loop after a save.

    A second signal has its usual effect.

    Outside the main thread, the handling of signals does not change.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    process = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            # The script has forked this process and now ends it. The usual effect of the signal is restored here:
            # otherwise the forked process would not end, and the script would wait for it for ever.
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
            return
        board.leave(KINDS[signal.Signals(number)], grace_seconds=grace_seconds)
        signal.signal(number, before[signal.Signals(number)])

    for number in _SIGNALS:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
