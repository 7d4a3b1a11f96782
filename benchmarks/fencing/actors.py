"""The actors of a world: a parent that declares live attempts lost, attempts that continue, and a person who deletes a
run."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from segue.checkpoints.loading.select import newest_valid
from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.clock import Clock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next
from segue.errors import (
    BrokenChainError,
    FencedError,
    LogCutError,
    LostRecordError,
    NothingTrustedError,
    ReplayedRecordError,
    SegueError,
    StalePlanError,
    UnreadRecordError,
)
from segue.launch.assignment import Assignment
from segue.records import Environment, Manifest, SegmentPlan, SegmentReport, StopReason, WitnessRow
from segue.runlog.entries import CommitEntry, Entry, OpenEntry, ReportEntry, SealEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog, Slot, Stamp
from segue.signing import Signer
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError
from segue.trainer.claim import claim_run

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
STEPS = 10
"""Number of steps between two saves."""
_ROWS = {"loss": 1.0, "grad_norm": 0.0, "param_norm": 0.0, "lr": (), "batch_fingerprint": "", "input_fingerprint": ""}


_STOPS = (FencedError, StalePlanError, UnreadRecordError, StoreReadError, StoreWriteError)
_STOPS_OF_DELETED = (LogCutError, LostRecordError, NothingTrustedError, ReplayedRecordError, BrokenChainError)
"""Errors with which a writer may also end if its run was deleted while it was at work."""


@dataclass
class Facts:
    """The events of a world, as its actors know them."""

    committed: list[tuple[str, Slot]] = field(default_factory=list)
    """The log's id and the record of each commit that an attempt knows of."""
    resumed: list[tuple[str, int, int | None]] = field(default_factory=list)
    """The log's id, the slot of the claim, and the slot of the checkpoint of each resume; None: step 0."""
    ends: list[str] = field(default_factory=list)
    """The errors with which attempts ended."""
    crashes: list[str] = field(default_factory=list)
    """Errors that no actor may have."""
    is_deleted: bool = False


@dataclass(frozen=True)
class Place:
    """The objects that every actor of a world has."""

    spec: RunSpec
    clock: Clock
    signer: Signer | None
    facts: Facts
    random: Random

    def log(self, store: Any) -> RunLog:
        return RunLog(store, self.spec.run_id, clock=self.clock, signer=self.signer)


def value_of(attempt_id: str, step: int) -> float:
    """The content of each tensor of a checkpoint."""
    return float(zlib.crc32(attempt_id.encode()) % 10_000 + step)


def parent(place: Place, store: Any, start: Callable[[SegmentPlan], None], *, attempts: int) -> None:
    """Open the run, decide an attempt, start it, declare it lost while it lives, and repeat."""
    log = place.log(store)
    try:
        log.append(lambda stamp: _opened(place, log, stamp))
        for _ in range(attempts):
            plan = decide_next(log, place.spec, clock=place.clock).plan
            if plan is None:
                return
            start(plan)
            for _ in range(place.random.randrange(120)):
                read_history(log)
            declare_lost(log, plan, why="no heartbeat")
    except SegueError as error:
        _end(place, error)


def _opened(place: Place, log: RunLog, stamp: Stamp) -> Entry:
    return OpenEntry.model_validate(stamp(epoch=0) | {"spec": place.spec})


def attempt(place: Place, store: Any, plan: SegmentPlan, *, saves: int) -> None:
    """Claim, resume, then save, commit, prune and seal, until the attempt is fenced or finished; then report."""
    log = place.log(store)
    try:
        claim = claim_run(log, Assignment(spec=place.spec, plan=plan), environment=HERE)
        found = newest_valid(log, epoch=claim.epoch)
        place.facts.resumed.append((log.log_id, claim.slot, found.checkpoint.ref.slot if found else None))
        pruner = Pruner(epoch=claim.epoch, retention=place.spec.checkpoints, tiers=[store])
        step = found.checkpoint.manifest.step if found else 0
        for _ in range(saves):
            step += STEPS
            slot = _commit(place, log, claim.attempt_id, claim.epoch, step)
            place.facts.committed.append((log.log_id, slot))
            pruner.prune(log)
            _seal(log, claim.attempt_id, claim.epoch, slot, step)
        report = _report(plan, claim.attempt_id, step)
        log.append(
            lambda stamp: ReportEntry.model_validate(stamp(epoch=claim.epoch) | {"report": report}), epoch=claim.epoch
        )
    except SegueError as error:
        _end(place, error)


def _end(place: Place, error: SegueError) -> None:
    place.facts.ends.append(type(error).__name__)
    expected = _STOPS + (_STOPS_OF_DELETED if place.facts.is_deleted else ())
    if not isinstance(error, expected):
        place.facts.crashes.append(repr(error))


def delete_run(place: Place, store: Any) -> None:
    """Delete the folder of the run, as a person does: one object after the other, in whatever order."""
    place.facts.is_deleted = True
    keys = [item.key for item in store.list_objects(f"{place.spec.run_id}/")]
    place.random.shuffle(keys)
    store.delete(keys)


def _commit(place: Place, log: RunLog, attempt_id: str, epoch: int, step: int) -> Slot:
    tensors = {"a": torch.full((8,), value_of(attempt_id, step))}
    facts: dict[str, Any] = {"step": step, "samples_seen": step, "epoch": 0, "metric": None, "parent": None}
    facts["environment"] = HERE.model_dump(mode="json")
    save = Save(log.run_id, attempt_id, step, facts={} if log.is_signed else facts, is_signed=log.is_signed)
    with closing(StagingArea()) as area:
        staged = area.take({"model": tensors, "progress": {"step": step}})
        written = InlineWriter([log.store]).write(staged, save)
    if place.random.random() < 0.2:
        raise StoreWriteError(url="memory", key="", why="the trainer was killed before the record of its save")
    manifest = Manifest.model_validate(facts | written.to_json())

    def build(stamp: Stamp) -> Entry:
        return CommitEntry.model_validate(stamp(epoch=epoch) | {"attempt_id": attempt_id, "manifest": manifest})

    return log.append(build, epoch=epoch)


def _seal(log: RunLog, attempt_id: str, epoch: int, slot: Slot, step: int) -> None:
    checkpoint = {"slot": slot.number, "step": step, "attempt_id": attempt_id}
    facts = {"attempt_id": attempt_id, "checkpoint": checkpoint, "rows": (WitnessRow(step=step + 1, **_ROWS),)}
    log.append(lambda stamp: SealEntry.model_validate(stamp(epoch=epoch) | facts), epoch=epoch)


def _report(plan: SegmentPlan, attempt_id: str, step: int) -> SegmentReport:
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=attempt_id,
        capacity=plan.capacity,
        stop_reason=StopReason.NOTICE,
        from_step=0,
        to_step=step,
    )
