"""Makes the first checkpoint of a run from a file of weights or from another run. The module imports torch late.

In the log, an import is an attempt with its own segment number and attempt number. The decision of this attempt has the
action `import`. The attempt claims the run, commits and reports. The attempt fences other attempts and can be fenced,
and a trainer resumes from its checkpoint as usual. An import uses no capacity, so it costs nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from segue.clock import Clock
from segue.controller.attempt_ends import declare_lost
from segue.errors import LogMovedError, RunBegunError
from segue.launch.assignment import Assignment
from segue.policy.decide import numbers_of_next
from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Fork,
    Heartbeat,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    WeightsFile,
)
from segue.runlog.entries import CommitEntry, DecisionEntry, Entry, ReportEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.stores import StoreReadError, StoreWriteError
from segue.stores.retry import patiently
from segue.trainer.claim import Claim, claim_run
from segue.trainer.health.heartbeat import HeartbeatThread

if TYPE_CHECKING:
    from segue.checkpoints.saving.staging import Staged

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FirstCheckpoint:
    """The content of a run's first checkpoint, before the checkpoint is written."""

    spec: RunSpec
    origin: WeightsFile | Fork
    step: int
    samples_seen: int
    epoch: int
    environment: Environment
    trees: dict[str, Any]
    """The state of each component. Its tensors may be the tensors of a live model."""


def require_unbegun(history: History, *, run_id: str) -> None:
    """Check that the run has no checkpoint, no active attempt, and no damaged record that may be a checkpoint.

    Raises:
        RunBegunError: the run has already begun. The error names the checkpoint, attempt or record.
    """
    what = None
    plan = history.open_plan
    if history.checkpoints:
        newest = (history.newest or history.checkpoints[-1]).ref
        what = f"its attempt {newest.attempt_id} committed a checkpoint of step {newest.step}"
    elif plan is not None and not history.is_import(plan.segment, plan.attempt):
        what = f"segment {plan.segment} attempt {plan.attempt} on {plan.capacity} may still be running"
    elif history.damage:
        what = f"its record {history.damage[0].key} may be a checkpoint and cannot be read ({history.damage[0].why})"
    if what is not None:
        raise RunBegunError(run_id=run_id, what=what)


def commit_first(runlog: RunLog, state: FirstCheckpoint, staged: Staged, *, clock: Clock) -> CheckpointRef:
    """Announce the import, claim the run, write the state, commit it and report, in this order.

    From the commit on, the checkpoint exists.

    Raises:
        RunBegunError: the run has a new checkpoint or attempt. The call changed nothing.
        FencedError, StalePlanError: another attempt claimed the run. The call committed nothing.
        StoreWriteError, StoreReadError: the store could not be used. The import can be repeated.
    """
    from segue.checkpoints.saving.writer_client import InlineWriter
    from segue.checkpoints.saving.written import Save

    plan = _announce(runlog, state)
    started_at = clock.monotonic()
    claim = claim_run(runlog, Assignment(spec=state.spec, plan=plan), environment=state.environment)
    with _alive(runlog, state.spec, claim, clock=clock, step=state.step):
        save = Save(runlog.run_id, claim.attempt_id, state.step, is_signed=runlog.is_signed)
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
            imported_from=state.origin if isinstance(state.origin, WeightsFile) else None,
            forked_from=state.origin if isinstance(state.origin, Fork) else None,
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
            # The checkpoint exists. The next start declares this attempt lost and resumes from the checkpoint.
            log.error("could not write the report of the import reason=%s", error)
    return checkpoint


def _announce(runlog: RunLog, state: FirstCheckpoint) -> SegmentPlan:
    """Write the import to the log as the next attempt. If a parent of the run reads this record, it waits for the
    import."""
    while True:
        history = patiently(lambda: read_history(runlog), what="log")
        require_unbegun(history, run_id=runlog.run_id)
        before = history.open_plan
        if before is not None:  # An earlier import was killed; if it is still alive, the next claim fences it.
            lose = partial(declare_lost, runlog, before, why="another import took its place")
            patiently(lose, what="report")
            continue
        segment, attempt = numbers_of_next(history, parent=history.newest.ref if history.newest else None)
        plan = SegmentPlan(
            segment=segment,
            attempt=attempt,
            # A record must name spot or on-demand; an attempt without capacity of a pool counts as neither.
            capacity=Capacity.SPOT,
            deployment=state.spec.pools.deployment(Capacity.SPOT),
            log_id=runlog.log_id,
        )
        build = partial(_decision, plan, state.origin)
        with suppress(LogMovedError):  # Another process wrote a record first: read the log again.
            patiently(partial(runlog.append, build, at=history.next_slot), what="decision")
            return plan


def _decision(plan: SegmentPlan, origin: WeightsFile | Fork, stamp: Stamp) -> Entry:
    facts = {"plan": plan, "action": "import", "reason": _in_words(origin)}
    return DecisionEntry.model_validate(stamp(epoch=0) | facts)


def _in_words(origin: WeightsFile | Fork) -> str:
    if isinstance(origin, Fork):
        reset = f", without its {' and '.join(origin.reset)}" if origin.reset else ""
        return f"fork of {origin.name}: a checkpoint of another run{reset}"
    return f"import of {origin.name} (SHA-256 {origin.sha256}): weights from a file"


def _report(plan: SegmentPlan, state: FirstCheckpoint, checkpoint: CheckpointRef, *, seconds: float) -> SegmentReport:
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
        note=_in_words(state.origin),
    )


@contextmanager
def _alive(runlog: RunLog, spec: RunSpec, claim: Claim, *, clock: Clock, step: int) -> Iterator[None]:
    """Write heartbeats while the block runs, so that a parent that starts during the block waits for the import."""

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
