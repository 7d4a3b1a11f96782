"""The trainer process: `python -m segue.trainer.main` with an assignment on standard input.

With `--early`, the process imports all modules first, while the segment engine still prepares the assignment. A rank
that torchrun started gets the path of a launch folder instead of an assignment. A standby also gets a launch folder,
because a standby boots before there is an assignment. The exit code is an `ExitCode`; the run's log has the details.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

from segue.clock import SystemClock
from segue.errors import BrokenResumeError, SegueError, StalePlanError
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.local import DUMP_SIGNAL, EARLY_OPTION
from segue.launch.output import survive_broken_output
from segue.launch.rendezvous import RANKS_VARIABLE, LaunchFolder
from segue.notices.board import NoticeBoard
from segue.notices.signals import KINDS, SignalNotices
from segue.process import FLOW_RUN_VARIABLE, go_on_without_parent, set_shown_variable
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.trainer.process import machine_check
from segue.trainer.ranks.process_end import destroy_users_objects, end_process

log = logging.getLogger("segue.trainer")


def main() -> int:
    """Run the assignment; return the exit code."""
    go_on_without_parent()
    # The signals are blocked until there is a handler, because a notice may arrive during the imports.
    signal.pthread_sigmask(signal.SIG_BLOCK, tuple(KINDS))
    if sys.argv[1:] in ([], [EARLY_OPTION]):
        if sys.argv[1:]:
            machine_check.begin()
            importlib.import_module("segue.trainer.attempt")
        text = sys.stdin.buffer.read()
        if not text:
            return ExitCode.NOTICE  # The segment ended before it had an assignment.
        assignment = Assignment.model_validate_json(text)
        if assignment.flow_run_id is not None and FLOW_RUN_VARIABLE in os.environ:
            set_shown_variable(FLOW_RUN_VARIABLE, assignment.flow_run_id)
        return _run(assignment)
    folder = LaunchFolder(Path(sys.argv[1]))
    if RANKS_VARIABLE in os.environ:
        _be_a_rank(folder, int(os.environ["RANK"]))
    code = _run(folder.assignment, folder=folder)
    _leave(folder, 0, code)
    return code


def _leave(folder: LaunchFolder, rank: int, code: int) -> None:
    folder.leave(rank, code)
    if rank == 0 and not folder.has_owner():
        folder.remove()  # No other process will remove it.


def _be_a_rank(folder: LaunchFolder, rank: int) -> NoReturn:
    try:
        code = _run(folder.assignment, folder=folder, rank=rank)
        _leave(folder, rank, code)
    except BaseException:
        # Catch any exception, because the process must end without destroying its process groups.
        log.exception("this rank ends")
        end_process(1)
    # torchrun ends the other ranks as soon as one rank fails, and the other ranks may still have a report to write.
    # After a usage error, no rank has begun, so ranks that wait for this rank must end.
    end_process(code if code == ExitCode.USAGE else 0)


def _run(assignment: Assignment | None, *, folder: LaunchFolder | None = None, rank: int = 0) -> int:
    spec = assignment.spec if assignment is not None else _folder_of_standby(folder).spec
    _log_as(spec, assignment, rank)
    survive_broken_output(folder.owner if folder is not None else None)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    clock = SystemClock()
    board = NoticeBoard(clock)
    signals = SignalNotices(board, grace_seconds=spec.grace_seconds, usr1_seconds=spec.liveness.usr1_seconds)
    signals.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, tuple(KINDS))
    for number in folder.enter(rank) if folder is not None else ():
        signals.leave(number)
    if assignment is not None:
        machine_check.begin()  # A standby's machine is checked when the standby gets its assignment.
    # These imports come after the handlers are installed, because they take seconds and a notice may arrive during
    # them.
    from segue.trainer.attempt import run_attempt
    from segue.trainer.standby import boot_and_wait

    try:
        if assignment is None:
            assignment = boot_and_wait(_folder_of_standby(folder), rank, spec=spec, board=board, clock=clock)
            if assignment is None:
                return ExitCode.NOTICE
            machine_check.begin()
            _log_as(spec, assignment, rank)
        runlog = open_log(spec, clock=clock)
        owner = folder.owner if folder is not None else None
        leave = partial(folder.leave, rank) if folder is not None else lambda _: None
        report = run_attempt(assignment, runlog=runlog, board=board, clock=clock, owner=owner, leave=leave)
    except StalePlanError as error:
        log.warning("%s", error)
        return ExitCode.FENCED
    except BrokenResumeError as error:
        log.error("%s", error)
        return ExitCode.BROKEN
    except SegueError as error:
        log.error("%s", error)
        return error.exit_code
    log.info("attempt ended reason=%s step=%d", report.stop_reason, report.to_step)
    return ExitCode.of(report.stop_reason)


def _folder_of_standby(folder: LaunchFolder | None) -> LaunchFolder:
    assert folder is not None, "a process without an assignment has a launch folder"
    return folder


def _log_as(spec: RunSpec, assignment: Assignment | None, rank: int) -> None:
    name = f"seg{assignment.plan.segment} a{assignment.plan.attempt}" if assignment is not None else "standby"
    line = f"%(levelname)s {spec.run_id} {name} rank{rank} | %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=line, force=True)


if __name__ == "__main__":
    # Destroying torch's objects takes half a second, and the next segment waits for the end of this process.
    end_process(main(), last=destroy_users_objects)
