"""One attempt from claim to report, in the process that trains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from segue.checkpoints.format.dtensor import OwnSlices
from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.committer import IncrementalBase, Writer
from segue.checkpoints.saving.partition import Partition
from segue.checkpoints.saving.save_job import Author
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import ProcessWriter, ShardWriter, wait_for_writer
from segue.clock import Clock
from segue.data.loader import stream_seed
from segue.data.streams import seed_all
from segue.errors import (
    FencedError,
    MachineError,
    RankLostError,
    StoreUnreachableError,
    UnreadRecordError,
    WriterDiedError,
)
from segue.launch import memory
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.notices.watchers import Search, Watcher, watchers_of, watching
from segue.process import Parent, ProcessRef
from segue.records import SegmentReport, StopReason
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.trainer.claim import claim_together
from segue.trainer.health.activity import Activity
from segue.trainer.health.failures import stop_reason, without_traceback
from segue.trainer.health.heartbeat import HeartbeatThread
from segue.trainer.health.watchdog import Watchdog
from segue.trainer.loop import TrainingLoop
from segue.trainer.process.context import AttemptContext
from segue.trainer.process.environment import environment_of, prepare_device, refuse_lost_accelerator
from segue.trainer.process.machine_check import machine_here, require_fit
from segue.trainer.program_attempt import ProgramAttempt
from segue.trainer.programs.live_session import LiveSession
from segue.trainer.ranks.group import local_rank, meet
from segue.trainer.rehearsal import refuse_after_broken
from segue.trainer.replays.fresh import SecondOpinion, may_ask
from segue.trainer.reporting import report_ended, report_without_training, starting
from segue.trainer.resuming.resume import Resume
from segue.trainer.workloads.base import Workload, driven
from segue.trainer.workloads.live_recipe import LiveRecipe

log = logging.getLogger(__name__)


def run_attempt(
    assignment: Assignment,
    *,
    runlog: RunLog,
    board: NoticeBoard,
    clock: Clock,
    shards: ShardWriter | None = None,
    owner: ProcessRef | None = None,
    leave: Callable[[int], None] = lambda _: None,
) -> SegmentReport:
    """Claim the run, restore the state, train, and report. The call blocks until the attempt ends.

    If this process is killed at any moment, the run continues from its newest commit. If `shards` is None, a separate
    process writes the checkpoints. If torchrun started this process, the call runs one rank's part of the attempt, and
    `owner` is the process that started all ranks. If the process has to end during the call, segue calls `leave` with
    the exit code.

    Raises:
        StalePlanError: the plan is no longer valid, for example because a newer attempt was decided; nothing was
            changed.
        SpecError: the requested device is not available; nothing was changed.
        BrokenResumeError: the resumed training differs from the run; the log has the verdict and the report.
        RankLostError: another rank has ended; no report was written.
    """
    parent = Parent()  # The first call, because the parent may end soon.
    with ExitStack() as opened:
        claimed = _claimed(assignment, runlog=runlog, board=board, clock=clock, shards=shards, leave=leave)
        attempt = opened.enter_context(claimed)
        opened.enter_context(attempt.watchdog.watching())
        if attempt.context.ranks.is_leader:
            opened.enter_context(attempt.heartbeat.beating())
            opened.enter_context(watching(_watchers(attempt.context, owner, parent), board))
        return attempt.run()


@contextmanager
def local_attempt(assignment: Assignment, *, runlog: RunLog, board: NoticeBoard, clock: Clock) -> Iterator[LiveSession]:
    """Claim the run for the program that already runs in this process, and yield the program's session.

    The session restores, trains and saves inside the block. Segue does not end this process. Segue watches no source of
    notices, so `board` has only the notices that the caller adds. If the block raises an exception, segue reports the
    exception and raises it again.

    Raises:
        StalePlanError: the plan is no longer valid, for example because a newer attempt was decided; nothing was
            changed.
        BrokenResumeError: the resumed training differs from the run; the log has the verdict and the report.
    """
    claimed = _claimed(assignment, runlog=runlog, board=board, clock=clock, is_checked=False)
    with claimed as attempt, ExitStack() as opened:
        opened.enter_context(attempt.heartbeat.beating())
        yield opened.enter_context(attempt.hosting())


@contextmanager
def _claimed(
    assignment: Assignment,
    *,
    runlog: RunLog,
    board: NoticeBoard,
    clock: Clock,
    shards: ShardWriter | None = None,
    leave: Callable[[int], None] = lambda _: None,
    is_checked: bool = True,
) -> Iterator[Attempt]:
    """Check the machine, claim the run and yield the attempt. At the end of the block, close the writer.

    Raises:
        UnfitMachineError: the machine failed the check; the run was not claimed.
    """
    spec = assignment.spec
    device = prepare_device(spec, local_rank=local_rank())
    started_at = clock.monotonic()
    wait_seconds, is_program = spec.liveness.rank_seconds, spec.program is not None
    group = meet(device, wait_seconds=wait_seconds, clock=clock, is_program=is_program)
    environment = environment_of(device, world_size=group.ranks.count, is_deterministic=spec.deterministic)
    fast = _fast_tier(spec)
    with closing(group), group.shared_failure():
        refuse_lost_accelerator(spec, read_history(runlog), device=device)
        # The writer is started before the build of the recipe, so that the writer starts during the build.
        stores = [*(StoreSpec(url=store.url) for store in fast), spec.store]
        shards = group.writer(shards or ProcessWriter(stores, rank=group.ranks.rank))
        with closing(shards):
            activity = Activity(clock, begun_at=started_at)
            board.phase_of = lambda: activity.phase
            machine = machine_here(device)
            check = require_fit(runlog, assignment, device=device, machine=machine) if is_checked else None
            context = AttemptContext(
                assignment=assignment,
                runlog=runlog,
                claim=claim_together(
                    runlog, assignment, group.ranks, environment=environment, machine=machine, check=check
                ),
                device=device,
                environment=environment,
                group=group,
                board=board,
                clock=clock,
                activity=activity,
                kills=memory.RecentKills(),
                memory_limit_bytes=memory.limit_bytes(),
                started_at=started_at,
            )
            yield Attempt(context, shards=shards, fast=fast, leave=leave)


class Attempt:
    """One attempt in this process, after its claim. The attempt builds the recipe, restores the state, trains, and
    reports."""

    def __init__(
        self, context: AttemptContext, *, shards: ShardWriter, fast: Sequence[Store], leave: Callable[[int], None]
    ) -> None:
        self.context, self._shards, self._fast = context, shards, fast
        self.heartbeat = HeartbeatThread(
            context.runlog.store,
            run_id=context.runlog.run_id,
            attempt_id=context.claim.attempt_id,
            interval_seconds=context.spec.liveness.heartbeat_seconds,
            describe=partial(starting, context),
        )
        self.watchdog = Watchdog(
            context.spec,
            context.activity,
            context.board,
            report=partial(report_ended, context),
            group=context.group,
            leave=leave,
        )
        self._resume = Resume(
            context.runlog,
            context.claim,
            environment=context.environment,
            accept=context.spec.continuity.accept,
            fast=fast,
            ranks=context.ranks,
        )

    def run(self) -> SegmentReport:
        """Build, restore, train and report. The method raises the same errors as `run_attempt`."""
        program = self.context.spec.program
        with ExitStack() as opened:
            return self._run_recipe(opened) if program is None else self._of_program(opened).run(program)

    @contextmanager
    def hosting(self) -> Iterator[LiveSession]:
        """Yield the session of a program that already runs in this process; the attempt ends at the end of the block.

        If the block raises an exception, or if the attempt fails, segue reports the error and raises it again.
        """
        with ExitStack() as opened, self._of_program(opened).hosting() as session:
            yield session

    def _of_program(self, opened: ExitStack) -> ProgramAttempt:
        def begin(live: Workload) -> TrainingLoop:
            self._read_environment()
            self._resume.judge_on(self.context.environment)
            self._wait_for_first_step()
            wait_for_writer(self._shards)
            return self._loop(live, opened)

        return ProgramAttempt(self.context, self._resume, begin=begin, ended_early=self._ended_early)

    def _run_recipe(self, opened: ExitStack) -> SegmentReport:
        try:
            with self.context.group.shared_failure():
                live = self._restored()
        except (Exception, SystemExit) as error:
            return self._ended_early(error)
        loop = self._loop(live, opened)
        return loop.run(lambda: driven(loop.steps(), live.make_step))

    def _ended_early(self, error: BaseException) -> SegmentReport:
        """Report an attempt that `error` ended before its first step. If the storage or the machine caused the error,
        raise the error again."""
        context = self.context
        if isinstance(error, FencedError):
            return report_without_training(context, StopReason.FENCED, error)
        if isinstance(error, RankLostError):
            return report_without_training(context, StopReason.LOST, error)
        if isinstance(error, (StoreReadError, StoreWriteError, UnreadRecordError, WriterDiedError, MachineError)):
            raise error  # The recipe did not fail: without a report, the attempt counts as lost.
        # The build and the load run the user's code. An exception of this code goes into the report, where a person
        # sees it.
        refusal = without_traceback(error)
        if refusal is not None:
            log.error("the attempt could not begin to train reason=%s", refusal)
        else:
            log.error("the attempt could not begin to train", exc_info=error)
        reason = stop_reason(error, kills_before=context.kills.before)
        return report_without_training(context, reason, refusal or error)

    def _restored(self) -> LiveRecipe:
        context = self.context
        spec, ranks = context.spec, context.ranks
        live = LiveRecipe(spec, device=context.device, ranks=ranks, skips=context.plan.skips)
        own, memory_bytes = OwnSlices.of(live.recipe.model.parameters()), context.memory_share_bytes
        context.activity.phase = "restore"
        parent = self._resume.find(at_most=context.plan.at_most, own=own, memory_bytes=memory_bytes)
        self._read_environment()
        if ranks.rank:
            # Seed this rank's streams until stored streams are restored. The leader continues the run's streams.
            seed_all(stream_seed(spec.seed, rank=ranks.rank, step=parent.step if parent else 0))
        self._resume.judge_on(
            self.context.environment,
            opinion=SecondOpinion(self.context) if ranks.count == 1 and may_ask(context.assignment) else None,
            is_order_of_sums_relevant=live.depends_on_order_of_sums,
        )
        self._resume.restore(live.components)
        live.spread()
        self._wait_for_first_step()
        wait_for_writer(self._shards)
        return live

    def _wait_for_first_step(self) -> None:
        """Give all ranks the longer time limit of the first step, because each rank compiles and connects in this
        step."""
        self.context.activity.goes_on()
        liveness = self.context.spec.liveness
        self.context.ranks.limit_waiting(max(liveness.first_step_seconds, liveness.rank_seconds))

    def _read_environment(self) -> None:
        """Read the environment again after the build, because a recipe may set the number of threads and choose
        kernels."""
        context = self.context
        environment = environment_of(
            context.device, world_size=context.ranks.count, is_deterministic=context.spec.deterministic
        )
        self.context = replace(context, environment=environment)

    def _loop(self, live: Workload, opened: ExitStack) -> TrainingLoop:
        """Make the training loop and the objects that save the state. After the call, the heartbeat and the watchdog
        use the loop."""
        ranks = self.context.ranks
        staging = opened.enter_context(
            closing(
                StagingArea(
                    staging_buffers=self.context.spec.checkpoints.staging_buffers,
                    partition=Partition(ranks.rank, ranks.count, is_same_everywhere=live.is_same_everywhere),
                )
            )
        )
        writer = opened.enter_context(closing(self._writer(staging)))
        loop = TrainingLoop(self.context, live, resume=self._resume, staging=staging, writer=writer)
        self.heartbeat.describe, self.watchdog.report = loop.describe, loop.captured.report_ended
        self.watchdog.captured = loop.captured
        return loop

    def _writer(self, staging: StagingArea) -> Writer:
        context = self.context
        checkpoints, claim = context.spec.checkpoints, context.claim
        base_step = self._resume.offer_base(self._shards) if checkpoints.full_every > 1 else None
        return Writer(
            context.runlog,
            Author(
                claim.attempt_id,
                claim.epoch,
                self._resume.parent,
                context.environment,
                commits=context.ranks.is_leader,
                require=partial(refuse_after_broken, context.assignment, context.runlog),
            ),
            shards=self._shards,
            base=IncrementalBase(base_step, full_every=checkpoints.full_every),
            pruner=Pruner(epoch=claim.epoch, retention=checkpoints, tiers=[*self._fast, context.runlog.store]),
            release=staging.release,
            clock=context.clock,
        )


def _fast_tier(spec: RunSpec) -> list[Store]:
    folder = spec.checkpoints.fast_folder
    if folder is None:
        return []
    tier = LocalStore(Path(folder))
    try:
        tier.create()
    except StoreUnreachableError as error:
        log.warning("the fast folder is not used reason=%s", error)  # The durable store has every checkpoint.
    return [tier]


def _watchers(context: AttemptContext, owner: ProcessRef | None, parent: Parent) -> list[Watcher | Search]:
    store, attempt_id = context.runlog.store, context.claim.attempt_id
    return watchers_of(context.spec, store, attempt_id=attempt_id, owner=owner, clock=context.clock, parent=parent)
