"""The part of an attempt that trains a program: it runs the program's command and provides its session."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from segue.data.config import config_for_processes, config_with_data
from segue.data.loader import stream_seed
from segue.data.streams import seed_all
from segue.errors import RanksChangedError, SessionError
from segue.hosting import hosted
from segue.records import SegmentReport
from segue.runlog.history import read_history
from segue.spec import ProgramSpec
from segue.stores import LocalStore
from segue.stores.retry import patiently
from segue.trainer.loop import TrainingLoop
from segue.trainer.process.context import AttemptContext
from segue.trainer.programs.live_session import LiveSession
from segue.trainer.programs.own_files import OwnFiles, own_files
from segue.trainer.programs.program_record import ProgramRecord
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.resuming.resume import Resume
from segue.trainer.workloads.base import Steps, Workload
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.opened_files import watch_opened_files


class ProgramAttempt:
    """One attempt of a program, from its claim to its report. The attempt owns the program's session."""

    def __init__(
        self,
        context: AttemptContext,
        resume: Resume,
        *,
        begin: Callable[[Workload], TrainingLoop],
        ended_early: Callable[[BaseException], SegmentReport],
    ) -> None:
        """`begin` makes the training loop for the tracked objects. If the attempt ends before there is a loop,
        `ended_early` makes the report. The argument of `ended_early` is the error that ended the attempt."""
        self._context, self._resume = context, resume
        self._begin, self._ended_early = begin, ended_early
        self._loop: TrainingLoop | None = None

    def run(self, program: ProgramSpec) -> SegmentReport:
        """Run the command until the command or the attempt ends."""
        spec, ranks = self._context.spec, self.ranks
        try:
            with self._context.group.shared_failure():
                config = config_with_data(spec)
                session = self._session(config, ProgramRecord(spec))
        except Exception as error:
            return self._ended_early(error)
        # If ranks do not seed their streams, they draw different numbers. The same is true for processes that torchrun
        # starts without segue.
        seed_all(stream_seed(spec.seed, rank=ranks.rank, step=0) if ranks.rank else spec.seed)
        try:
            with hosted(session), config_for_processes(config):
                raised = _run_command(program.command)
        except OSError as error:  # The file with the config could not be written.
            raised = error
        return self._conclude(session, raised)

    @contextmanager
    def hosting(self) -> Iterator[LiveSession]:
        """Yield the session of a program that already runs in this process. The attempt ends at the end of the block.

        If the block raises an exception, or if the attempt fails, segue reports the error and raises it again.
        """
        session = self._session(self._context.spec.config, None)
        raised: BaseException | None = None
        try:
            with hosted(session):
                yield session
        except BaseException as error:
            raised = error
        self._conclude(session, raised, is_raised_again=True)
        raised = raised or session.error
        if raised is not None:
            raise raised

    @property
    def ranks(self) -> Ranks:
        return self._context.ranks

    def restore(self, components: Mapping[str, Component]) -> None:
        self._resume.restore(components)

    @property
    def stored(self) -> Collection[str]:
        return self._resume.stored

    def own_files(self, since: datetime) -> OwnFiles:
        context = self._context
        history = patiently(lambda: read_history(context.runlog), what="log")
        own = history.attempt_named(context.claim.attempt_id)
        assert own is not None, "an attempt that trains has claimed the run"
        store, fast = context.runlog.store, context.spec.checkpoints.fast_folder
        apart = ([store.root] if isinstance(store, LocalStore) else []) + ([Path(fast)] if fast is not None else [])
        return own_files(since=since, until=own.claim.written_at, folder=Path.cwd(), apart=apart)

    def begin(self, live: Workload) -> Steps:
        self._loop = self._begin(live)
        return self._loop.steps()

    def is_stopping(self, step: int) -> bool:
        return self._loop is not None and self._loop.is_stopping(step)

    def wants_state(self, step: int, *, goal: float) -> bool:
        return step >= goal or (self._loop is not None and self._loop.wants_state(step))

    def evaluating(self) -> AbstractContextManager[None]:
        if self._loop is not None:
            self._loop.settle()  # Heartbeats show these steps for as long as the evaluation takes.
        return self._context.activity.evaluating()

    def _session(self, config: Mapping[str, Any], record: ProgramRecord | None) -> LiveSession:
        context = self._context
        context.activity.phase = "restore"
        parent = self._resume.find(at_most=context.plan.at_most, memory_bytes=context.memory_share_bytes)
        context.activity.phase = "build"
        stored, count, spec = self._resume.stored_ranks, self.ranks.count, context.spec
        if parent is not None and stored is not None and stored != count:
            raise RanksChangedError(run_id=spec.run_id, step=parent.step, before=stored, now=count)
        watch_opened_files()
        return LiveSession(spec, self, config=config, record=record)

    def _conclude(
        self, session: LiveSession, raised: BaseException | None, *, is_raised_again: bool = False
    ) -> SegmentReport:
        if self._loop is not None:
            return self._loop.run(lambda: session.conclude(raised), shows_failure=not is_raised_again)
        try:
            with self._context.group.shared_failure():
                if raised is not None:
                    raise raised
                what = "the program ended before its first step: no step was made in a loop of segue.session()."
                fix = "train in `for step in run.steps(n):`, where `run = segue.session()`."
                raise SessionError(what=what, fix=fix)
        except BaseException as error:
            return self._ended_early(error)


def _run_command(command: Sequence[str]) -> BaseException | None:
    """Run `python script.py ...` or `python -m module ...` in this process. If the program raises an exception, return
    the exception.

    `sys.exit(0)` does not count as an exception.
    """
    arguments = list(command[1:])
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except BaseException as error:
        # Return the exception to the attempt, which reports it. A program may raise any exception, and may exit.
        is_success = type(error) is SystemExit and error.code in (0, None)
        return None if is_success else error
    return None
