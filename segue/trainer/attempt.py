"""One attempt from claim to report, in the process that trains."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path

import torch

from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.committer import Writer
from segue.checkpoints.saving.partition import Partition
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import ProcessWriter, ShardWriter
from segue.clock import Clock
from segue.data.loader import Feed, seed_all, stream_seed
from segue.errors import FencedError, MachineTooSmallError, RankLostError, WriterDiedError
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.notices.file import FileWatcher, OwnerWatcher, RecallWatcher
from segue.recipe import Build, Recipe, import_build
from segue.records import Environment, Heartbeat, SegmentReport, StopReason
from segue.runlog.log import RunLog
from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.stores.retry import patiently
from segue.trainer.claim import Claim, claim_run
from segue.trainer.environment import environment_of, prepare_device
from segue.trainer.heartbeat import Describe, HeartbeatThread, Watcher
from segue.trainer.loop import TrainingLoop
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.ddp import spread
from segue.trainer.ranks.group import RankGroup, local_rank, meet
from segue.trainer.recipe_record import setup_components
from segue.trainer.reports import append_report, failure_of
from segue.trainer.resume import Resume
from segue.trainer.state import Progress, components_of, same_on_every_rank

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
    owner_pid: int | None = None,
) -> SegmentReport:
    """Claim the run, restore, train, report. Blocks until the attempt ends.

    A kill at any moment leaves the run at its newest commit. Checkpoints are written by a process of their own, unless
    another writer is given. In a process that torchrun started, this is one rank's part of the attempt, and
    `owner_pid` is who started them all.

    Raises:
        StalePlanError: the plan is no longer in force; nothing was touched.
        SpecError: the device asked for is not there; nothing was touched.
        BrokenResumeError: the resume did not continue the run; verdict and report are in the log.
        RankLostError: another rank is gone; no report was written.
    """
    spec = assignment.spec
    device = prepare_device(spec, local_rank=local_rank())
    started_at = clock.monotonic()
    group = meet(device, wait_seconds=spec.liveness.rank_seconds, clock=clock)
    environment = environment_of(device, world_size=group.ranks.count)
    fast = _fast_tier(spec)
    with closing(group), group.shared_failure():
        # Before the recipe is built, so that both get ready at the same time.
        stores = [*(StoreSpec(url=store.url) for store in fast), spec.store]
        shards = group.writer(shards or ProcessWriter(stores, rank=group.ranks.rank))
        with closing(shards):
            claim = _claim(runlog, assignment, environment, group.ranks)
            heartbeat = HeartbeatThread(
                runlog.store,
                run_id=runlog.run_id,
                attempt_id=claim.attempt_id,
                interval_seconds=spec.liveness.heartbeat_seconds,
                describe=_starting(claim, clock),
                board=board,
                watchers=_watchers(assignment, runlog, claim, owner_pid),
            )
            with heartbeat.beating() if group.ranks.is_leader else nullcontext():
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
                    group=group,
                )


def _claim(runlog: RunLog, assignment: Assignment, environment: Environment, ranks: Ranks) -> Claim:
    """The claim of all ranks; the leader makes it."""
    made = claim_run(runlog, assignment, environment=environment) if ranks.is_leader else None
    if made is not None:
        log.info("claimed attempt=%s epoch=%d", made.attempt_id, made.epoch)
    claim = Claim(**json.loads(ranks.gather_texts(json.dumps(asdict(made)) if made is not None else "")[0]))
    if made is None:
        patiently(runlog.reload, what="log")
    return claim


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
    group: RankGroup,
) -> SegmentReport:
    spec, ranks = assignment.spec, group.ranks
    resume = Resume(runlog, claim, environment=environment, accept=spec.continuity.accept, fast=fast, ranks=ranks)
    progress = Progress()
    try:
        with group.shared_failure():
            parent = resume.find(at_most=assignment.plan.at_most)
            build = import_build(spec.recipe)
            recipe = _built(build, spec, device)
            feed = Feed(
                recipe.data,
                recipe=spec.recipe,
                seed=spec.seed,
                rank=ranks.rank,
                world_size=ranks.count,
                skips=assignment.plan.skips,
            )
            components = components_of(recipe, progress, name=spec.recipe, ranks=ranks)
            components |= setup_components(recipe, feed, progress, build=build, config=spec.config)
            if ranks.rank:
                # What its own streams do until it finds some stored; the leader goes on with the run's.
                seed_all(stream_seed(spec.seed, rank=ranks.rank, step=parent.step if parent else 0))
            resume.restore(components)
            # After the restore, which says what is trained.
            recipe = spread(recipe, ranks, device, name=spec.recipe)
            ranks.limit_waiting()
            _wait_for(shards)
    except FencedError as error:
        return _empty_report(assignment, claim, StopReason.FENCED, clock.monotonic() - started_at, error)
    except RankLostError as error:
        report = _empty_report(assignment, claim, StopReason.LOST, clock.monotonic() - started_at, error)
        if group.reports:
            append_report(runlog, claim, report)
        return report
    except (StoreReadError, StoreWriteError, WriterDiedError, MachineTooSmallError):
        raise  # Storage's or the machine's fault, not the recipe's: no report, and the controller says `lost`.
    except (Exception, SystemExit) as error:
        # Building and loading run the user's code; whatever it raises belongs in the report, not in a dead process.
        log.error("the recipe could not be built or restored", exc_info=error)
        report = _empty_report(assignment, claim, StopReason.FAILED, clock.monotonic() - started_at, error)
        if group.reports:
            append_report(runlog, claim, report)
        return report
    staging = StagingArea(
        staging_buffers=spec.checkpoints.staging_buffers,
        partition=Partition(ranks.rank, ranks.count, is_same_everywhere=same_on_every_rank(recipe)),
    )
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
        commits=ranks.is_leader,
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
            group=group,
            environment=environment,
        )
        heartbeat.describe = loop.describe
        return loop.run()


def _built(build: Build, spec: RunSpec, device: torch.device) -> Recipe:
    seed_all(spec.seed)
    recipe = build(dict(spec.config))
    recipe.model.to(device)
    return recipe


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


def _watchers(assignment: Assignment, runlog: RunLog, claim: Claim, owner_pid: int | None) -> Sequence[Watcher]:
    watchers: list[Watcher] = [RecallWatcher(runlog.store, run_id=runlog.run_id, attempt_id=claim.attempt_id)]
    notice_file = assignment.spec.liveness.notice_file
    if notice_file is not None:
        watchers.append(FileWatcher(Path(notice_file), grace_seconds=assignment.spec.grace_seconds))
    if owner_pid is not None:
        watchers.append(OwnerWatcher(owner_pid))
    return watchers


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
