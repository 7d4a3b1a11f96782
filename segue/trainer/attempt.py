"""One attempt from claim to report, in the process that trains."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from segue.checkpoints.pruning import Pruner
from segue.checkpoints.staging import StagingArea
from segue.checkpoints.writer import Writer
from segue.checkpoints.writer_link import ProcessWriter, ShardWriter
from segue.clock import Clock
from segue.errors import FencedError, MachineTooSmallError, WriterDiedError
from segue.notices.board import NoticeBoard
from segue.notices.file import FileWatcher, RecallWatcher
from segue.records import Environment, Heartbeat, SegmentReport, StopReason
from segue.runlog import RunLog
from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.trainer.assignment import Assignment
from segue.trainer.claim import Claim, claim_run
from segue.trainer.components import Progress, components_of
from segue.trainer.environment import environment_of, prepare_device
from segue.trainer.feed import Feed, seed_all
from segue.trainer.heartbeat import Describe, HeartbeatThread, Watcher
from segue.trainer.loop import TrainingLoop, append_report, failure_of
from segue.trainer.recipe import import_build
from segue.trainer.resume import Resume

log = logging.getLogger(__name__)

_WRITER_STARTS = 3
"""How often the writer process may die before it is ready: one that never is has a reason that repeats."""


def run_attempt(
    assignment: Assignment,
    *,
    runlog: RunLog,
    board: NoticeBoard,
    clock: Clock,
    shards: ShardWriter | None = None,
) -> SegmentReport:
    """Claim the run, restore, train, report. Blocks until the attempt ends.

    A kill at any moment leaves the run at its newest commit. Checkpoints are written by a process of their own, unless
    another writer is given.

    Raises:
        StalePlanError: the plan is no longer in force; nothing was touched.
        SpecError: the device asked for is not there; nothing was touched.
        BrokenResumeError: the resume did not continue the run; verdict and report are in the log.
    """
    device = prepare_device(assignment.spec)
    environment = environment_of(device)
    started_at = clock.monotonic()
    claim = claim_run(runlog, assignment, environment=environment)
    log.info("claimed attempt=%s epoch=%d", claim.attempt_id, claim.epoch)
    heartbeat = HeartbeatThread(
        runlog.store,
        run_id=runlog.run_id,
        attempt_id=claim.attempt_id,
        interval_seconds=assignment.spec.liveness.heartbeat_seconds,
        describe=_starting(claim, clock),
        board=board,
        watchers=_watchers(assignment, runlog, claim),
    )
    heartbeat.start()
    fast = _fast_tier(assignment.spec)
    # Before the recipe is built, so that both get ready at the same time.
    shards = shards or ProcessWriter([*(StoreSpec(url=store.url) for store in fast), assignment.spec.store])
    try:
        with closing(shards):
            return _train(
                assignment,
                runlog=runlog,
                claim=claim,
                device=device,
                environment=environment,
                board=board,
                clock=clock,
                fast=fast,
                shards=shards,
                heartbeat=heartbeat,
                started_at=started_at,
            )
    finally:
        heartbeat.stop()


def _train(
    assignment: Assignment,
    *,
    runlog: RunLog,
    claim: Claim,
    device: torch.device,
    environment: Environment,
    board: NoticeBoard,
    clock: Clock,
    fast: Sequence[Store],
    shards: ShardWriter,
    heartbeat: HeartbeatThread,
    started_at: float,
) -> SegmentReport:
    spec = assignment.spec
    resume = Resume(runlog, claim, environment=environment, fast=fast)
    progress = Progress()
    try:
        parent = resume.find()
        seed_all(spec.seed)
        recipe = import_build(spec.recipe)(dict(spec.config))
        recipe.model.to(device)
        feed = Feed(recipe.data, recipe=spec.recipe, seed=spec.seed)
        components = components_of(recipe, progress, name=spec.recipe)
        resume.restore(components)
        _wait_for(shards)
    except FencedError as error:
        return _empty_report(assignment, claim, StopReason.FENCED, clock.monotonic() - started_at, error)
    except (StoreReadError, StoreWriteError, WriterDiedError, MachineTooSmallError):
        raise  # Storage's or the machine's fault, not the recipe's: no report, and the controller says `lost`.
    except (Exception, SystemExit) as error:
        # Building and loading run the user's code; whatever it raises belongs in the report, not in a dead process.
        log.exception("the recipe could not be built or restored")
        report = _empty_report(assignment, claim, StopReason.FAILED, clock.monotonic() - started_at, error)
        append_report(runlog, claim, report)
        return report
    staging = StagingArea(arenas=spec.checkpoints.arenas)
    writer = Writer(
        runlog,
        shards=shards,
        pruner=Pruner(epoch=claim.epoch, retention=spec.checkpoints, tiers=[*fast, runlog.store]),
        release=staging.release,
        attempt_id=claim.attempt_id,
        epoch=claim.epoch,
        parent=parent,
        environment=environment,
        full_every=spec.checkpoints.full_every,
        base_step=resume.offer_base(shards) if spec.checkpoints.full_every > 1 else None,
        clock=clock,
    )
    with closing(staging), closing(writer):
        loop = TrainingLoop(
            assignment,
            recipe=recipe,
            components=components,
            progress=progress,
            feed=feed,
            device=device,
            runlog=runlog,
            claim=claim,
            resume=resume,
            staging=staging,
            writer=writer,
            board=board,
            clock=clock,
            started_at=started_at,
        )
        heartbeat.describe = loop.describe
        return loop.run()


def _wait_for(shards: ShardWriter) -> None:
    for tries_left in reversed(range(_WRITER_STARTS)):
        try:
            shards.wait_until_ready()
        except WriterDiedError as error:
            if not tries_left:
                raise
            log.warning("writer started again reason=%s", error)
        else:
            return


def _fast_tier(spec: RunSpec) -> list[Store]:
    folder = spec.checkpoints.fast_folder
    return [] if folder is None else [LocalStore(Path(folder))]


def _watchers(assignment: Assignment, runlog: RunLog, claim: Claim) -> Sequence[Watcher]:
    recall = RecallWatcher(runlog.store, run_id=runlog.run_id, attempt_id=claim.attempt_id)
    notice_file = assignment.spec.liveness.notice_file
    if notice_file is None:
        return [recall]
    return [recall, FileWatcher(Path(notice_file), grace_seconds=assignment.spec.grace_seconds)]


def _starting(claim: Claim, clock: Clock) -> Describe:
    def describe(counter: int) -> Heartbeat:
        return Heartbeat(
            attempt_id=claim.attempt_id,
            counter=counter,
            phase="starting",
            step=0,
            trainer_pid=os.getpid(),
            beat_at=clock.now(),
        )

    return describe


def _empty_report(
    assignment: Assignment, claim: Claim, reason: StopReason, seconds: float, error: BaseException
) -> SegmentReport:
    plan = assignment.plan
    step = plan.parent.step if plan.parent else 0
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=claim.attempt_id,
        capacity=plan.capacity,
        stop_reason=reason,
        from_step=step,
        to_step=step,
        seconds=seconds,
        startup_seconds=seconds,
        failure=failure_of(error) if reason is StopReason.FAILED else None,
        note=str(error),
    )
