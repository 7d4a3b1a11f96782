"""Starting a run from weights in a file: they become its first checkpoint. Torch is imported late.

In the log an import is an attempt like any other, announced by a decision with the action `import`: it claims the run,
commits and reports. So its numbers are taken, it fences and is fenced, and a trainer resumes from it as from any other
checkpoint. It uses no capacity of a pool, so no budget is charged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.controller.steps import declare_lost, open_run
from segue.errors import (
    COMMAND_LINE,
    LogMovedError,
    MissingObjectError,
    RunBegunError,
    SpecError,
    WeightsFileError,
)
from segue.interop.export import Progress, no_progress
from segue.launch.assignment import Assignment
from segue.policy.decide import numbers_of_next
from segue.records import (
    Capacity,
    CheckpointRef,
    Heartbeat,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Value,
    WeightsFile,
)
from segue.runlog.entries import CommitEntry, DecisionEntry, Entry, ReportEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.stores import StoreReadError, StoreWriteError, open_store
from segue.stores.retry import patiently
from segue.trainer.claim import Claim, claim_run
from segue.trainer.health.heartbeat import HeartbeatThread

if TYPE_CHECKING:
    from segue.checkpoints.saving.staging import Staged
    from segue.interop.initial_state import FirstState

log = logging.getLogger(__name__)


class ImportReport(Value):
    """What was imported from which file, with notes for a person."""

    run_id: str
    step: int = Field(ge=0)
    file: WeightsFile
    checkpoint: CheckpointRef
    prefix: str = Field(description="Prefix removed from every name in the file.")
    kept_as_built: tuple[str, ...] = Field(description="Names that only the model has; `partial` permits them.")
    notes: tuple[str, ...] = Field(description="What differs from the file, in words.")


def import_weights(
    spec: RunSpec,
    file: Path,
    *,
    step: int = 0,
    partial: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Make the weights in `file`, and all other state as the recipe builds it, the first checkpoint of a run.

    With `step` the run counts from there, and the samples of the steps before are taken as seen. With `partial` the
    file may lack some of the model's weights. Blocks until the checkpoint is durable; after a crash before its commit
    the import can be repeated.

    Raises:
        WeightsFileError, WeightsMismatchError: the file holds no weights of this model; the run was not touched.
        RunBegunError: the run has a checkpoint, or an attempt at work.
        SpecError, RecipeError, UnsupportedStateError: the recipe gives no such state; likewise.
        FencedError, StalePlanError: another import or a trainer has claimed the run.
        StoreUnreachableError, StoreWriteError, StoreReadError: the store did not take it.
    """
    progress, clock = progress or no_progress, clock or SystemClock()
    if step >= spec.steps:
        problem = f"step: {step} is not before the goal of {spec.steps} steps; give a lower --step or more --steps"
        raise SpecError(source=COMMAND_LINE, problems=(problem,))
    path = require_weights_file(file)
    with suppress(StoreReadError, MissingObjectError):  # Opening the run gives the better error about the store.
        require_unbegun(read_history(RunLog(open_store(spec.store), spec.run_id)), run_id=spec.run_id)
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    progress("loading torch")
    from segue.checkpoints.saving.staging import StagingArea
    from segue.interop.initial_state import first_state

    state = first_state(spec, path, step=step, partial=partial, progress=progress)
    with closing(StagingArea()) as staging:
        staged = staging.take(state.trees)
        # Nothing was kept under another spec, so a changed spec does no harm.
        runlog = open_run(spec, clock=clock, accept_drift=True)
        progress("writing the checkpoint")
        checkpoint = commit_import(runlog, state, staged, clock=clock)
    log.info("weights imported step=%d file=%s sha256=%s", step, state.file.name, state.file.sha256)
    return ImportReport(
        run_id=spec.run_id,
        step=step,
        file=state.file,
        checkpoint=checkpoint,
        prefix=state.fit.prefix,
        kept_as_built=state.fit.kept_as_built,
        notes=state.notes,
    )


def require_weights_file(file: Path) -> Path:
    """The path, if it is a file with content.

    Raises:
        WeightsFileError: it is not there, a folder, or empty.
    """
    try:
        path = file.expanduser()
        if path.is_dir():
            fix = "name the file in it that has the model's weights."
            raise WeightsFileError(file=str(file), why="is a folder", fix=fix)
        is_empty = path.stat().st_size == 0
    except (OSError, RuntimeError) as error:  # RuntimeError: no such user, as in ~name.
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise WeightsFileError(file=str(file), why=why, fix="check the path.") from None
    if is_empty:
        raise WeightsFileError(file=str(file), why="is empty", fix="save or copy it again.")
    return path


def require_unbegun(history: History, *, run_id: str) -> None:
    """Pass if the run has nothing that an import would hide or overtake.

    Raises:
        RunBegunError: names what it has.
    """
    what = None
    plan = history.open_plan
    if history.checkpoints:
        newest = (history.newest or history.checkpoints[-1]).ref
        what = f"its attempt {newest.attempt_id} committed a checkpoint of step {newest.step}"
    elif plan is not None and not history.is_import(plan.segment, plan.attempt):
        what = f"segment {plan.segment} attempt {plan.attempt} on {plan.capacity} may be at work"
    elif history.damage:
        what = f"its record {history.damage[0].key} may be a checkpoint and cannot be read ({history.damage[0].why})"
    if what is not None:
        raise RunBegunError(run_id=run_id, what=what)


def commit_import(runlog: RunLog, state: FirstState, staged: Staged, *, clock: Clock) -> CheckpointRef:
    """Announce, claim, write, commit, report, in that order; the commit is what makes it a checkpoint.

    Raises:
        RunBegunError: the run got a checkpoint or an attempt since; nothing was touched.
        FencedError, StalePlanError: another attempt came in between; nothing was committed.
        StoreWriteError, StoreReadError: the store did not take it; the import can be made again.
    """
    from segue.checkpoints.saving.writer_client import InlineWriter
    from segue.checkpoints.saving.written import Save

    plan = _announce(runlog, state)
    started_at = clock.monotonic()
    claim = claim_run(runlog, Assignment(spec=state.spec, plan=plan), environment=state.environment)
    with _alive(runlog, state.spec, claim, clock=clock, step=state.step):
        save = Save(runlog.run_id, claim.attempt_id, state.step)
        written = patiently(partial(InlineWriter([runlog.store]).write, staged, save), what="checkpoint")
        manifest = Manifest(
            step=state.step,
            samples_seen=state.samples_seen,
            epoch=state.epoch,
            shards=written.shards,
            tensor_count=written.tensor_count,
            new_bytes=written.new_bytes,
            components=written.components,
            environment=state.environment,
            imported_from=state.file,
        )

        def commit(stamp: Stamp) -> Entry:
            facts = {"attempt_id": claim.attempt_id, "manifest": manifest}
            return CommitEntry.model_validate(stamp(epoch=claim.epoch) | facts)

        slot = patiently(lambda: runlog.append(commit, epoch=claim.epoch), what="commit")
        checkpoint = CheckpointRef(slot=slot.number, step=state.step, attempt_id=claim.attempt_id)
        report = _report(plan, state, checkpoint, seconds=clock.monotonic() - started_at)

        def last_word(stamp: Stamp) -> Entry:
            return ReportEntry.model_validate(stamp(epoch=claim.epoch) | {"report": report})

        try:
            patiently(lambda: runlog.append(last_word), what="report")
        except (StoreWriteError, StoreReadError) as error:
            # The checkpoint is there. The next start declares this attempt lost and resumes from it.
            log.error("report not written reason=%s", error)
    return checkpoint


def _announce(runlog: RunLog, state: FirstState) -> SegmentPlan:
    """Put the import into the log as the next attempt; a parent of the run waits for it from then on."""
    while True:
        history = patiently(lambda: read_history(runlog), what="log")
        require_unbegun(history, run_id=runlog.run_id)
        before = history.open_plan
        if before is not None:  # An import that was killed; should it still live, the next claim fences it.
            lose = partial(declare_lost, runlog, before, why="another import took its place")
            patiently(lose, what="report")
            continue
        segment, attempt = numbers_of_next(history, parent=history.newest.ref if history.newest else None)
        plan = SegmentPlan(
            segment=segment,
            attempt=attempt,
            # Records name one of the two; what has no capacity of a pool is not counted as either.
            capacity=Capacity.SPOT,
            deployment=state.spec.pools.deployment(Capacity.SPOT),
        )
        build = partial(_decision, plan, state.file)
        with suppress(LogMovedError):  # Another record came first: read the log again.
            patiently(partial(runlog.append, build, at=history.next_slot), what="decision")
            return plan


def _decision(plan: SegmentPlan, file: WeightsFile, stamp: Stamp) -> Entry:
    facts = {"plan": plan, "action": "import", "reason": _origin(file)}
    return DecisionEntry.model_validate(stamp(epoch=0) | facts)


def _origin(file: WeightsFile) -> str:
    return f"import of {file.name} (sha256 {file.sha256[:12]}): weights from a file"


def _report(plan: SegmentPlan, state: FirstState, checkpoint: CheckpointRef, *, seconds: float) -> SegmentReport:
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=checkpoint.attempt_id,
        capacity=plan.capacity,
        stop_reason=StopReason.BOUND,
        from_step=state.step,
        to_step=state.step,
        checkpoint=checkpoint,
        samples_seen=state.samples_seen,
        seconds=seconds,
        startup_seconds=seconds,
        got_capacity=False,
        note=_origin(state.file),
    )


@contextmanager
def _alive(runlog: RunLog, spec: RunSpec, claim: Claim, *, clock: Clock, step: int) -> Iterator[None]:
    """Write heartbeats: a parent that starts meanwhile waits for the import instead of overtaking it."""

    def describe(counter: int) -> Heartbeat:
        return Heartbeat(
            attempt_id=claim.attempt_id,
            counter=counter,
            phase="starting",
            step=step,
            trainer_pid=os.getpid(),
            beat_at=clock.now(),
        )

    heartbeat = HeartbeatThread(
        runlog.store,
        run_id=runlog.run_id,
        attempt_id=claim.attempt_id,
        interval_seconds=spec.liveness.heartbeat_seconds,
        describe=describe,
    )
    with heartbeat.beating():
        yield
