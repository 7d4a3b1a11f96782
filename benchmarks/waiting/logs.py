"""Logs of any length, as a run with many preemptions writes them; the last attempt is alive."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Heartbeat,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
    WitnessRow,
)
from segue.runlog import keys
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    Entry,
    OpenEntry,
    ReportEntry,
    SealEntry,
    VerdictEntry,
    encode,
)
from segue.shard import Shard
from segue.spec import RunSpec
from segue.stores.base import Store

RUN_ID = "waiting"
HEARTBEAT_SECONDS = 2.0
"""The default."""
COMMITS = 4
"""Number of commits of an attempt. With decision, claim, verdict, seals and report, an attempt has 12 records."""
_STEPS = 1000
_STEP_SECONDS = 0.9
_AT_ONCE = 32
_HERE = Environment(torch="2.13.0", device="cuda", instruction_set="AVX512", threads=8)


def spec_of(records: int, *, now: datetime, **fields: Any) -> RunSpec:
    """A run with a deadline that has made most of its steps after this many records. `fields` replaces fields of the
    spec."""
    policy = {"step_seconds": _STEP_SECONDS, "changeover_seconds": 300.0}
    common: dict[str, Any] = {"run_id": RUN_ID, "recipe": "train:build", "checkpoints": {"every_seconds": 300.0}}
    steps = _STEPS * COMMITS * (records // 12 + 3)
    return RunSpec.parse(common | {"steps": steps, "policy": policy, "deadline": now + timedelta(days=30)} | fields)


def write_log(store: Store, spec: RunSpec, *, records: int, now: datetime) -> SegmentPlan:
    """Write a log of this many records or a few more; return the plan of the attempt that is alive."""
    made: list[bytes] = []
    entries = _entries(spec, now - timedelta(hours=records // 12 + 1))
    while True:
        plan, entry = next(entries)
        made.append(encode(entry))
        if len(made) >= records and isinstance(entry, ClaimEntry):
            break

    def put(slot: int) -> None:
        store.put(keys.log_key(spec.run_id, slot), made[slot], durable=False)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(put, range(len(made))))
    return plan


def beat(store: Store, plan: SegmentPlan, *, counter: int, now: datetime, run_id: str = RUN_ID) -> None:
    """Write a heartbeat of the attempt that is alive."""
    start = plan.parent.step if plan.parent else 0
    facts: dict[str, Any] = {"phase": "training", "step": start + counter, "step_seconds": _STEP_SECONDS}
    name = keys.attempt_id(plan.segment, plan.attempt, plan.segment + 1)
    written = Heartbeat(attempt_id=name, counter=counter, trainer_pid=1, beat_at=now, **facts)
    store.put(keys.heartbeat_key(run_id, name), written.model_dump_json().encode(), durable=False)


def _plan(segment: int, parent: CheckpointRef | None) -> SegmentPlan:
    return SegmentPlan(
        segment=segment, attempt=1, capacity=Capacity.SPOT, deployment="segment/spot", max_seconds=None, parent=parent
    )


def _entries(spec: RunSpec, begun: datetime) -> Iterator[tuple[SegmentPlan, Entry]]:
    """Yield each record with the current plan, without end."""
    parent: CheckpointRef | None = None
    plan, slot = _plan(0, None), 0

    def stamp(epoch: int = 0) -> dict[str, Any]:
        return {"entry_id": uuid.uuid4().hex, "written_at": begun + timedelta(minutes=5 * slot), "epoch": epoch}

    yield plan, OpenEntry(spec=spec, **stamp())
    for segment in range(10**9):
        plan, name, epoch = _plan(segment, parent), keys.attempt_id(segment, 1, segment + 1), segment + 1
        reason = "spot: PLAN expects 43% of the cost of on-demand alone; the clamp leaves 12 h of slack"
        numbers = {"slack_seconds": 43_200.0, "work_seconds": 86_400.0, "changeover_seconds": 310.0}
        entries: list[tuple[type[Entry], dict[str, Any], int]] = [
            (DecisionEntry, {"plan": plan, "action": "run", "reason": reason, "numbers": numbers}, 0),
            (ClaimEntry, _claim(segment, name), epoch),
        ]
        if parent is not None:
            verdict = Verdict(kind=VerdictKind.EXACT, rows_compared=8)
            replayed = {"attempt_id": name, "parent": parent, "verdict": verdict, "replay": _rows(parent.step)}
            entries.append((VerdictEntry, replayed, epoch))
        step = parent.step if parent else 0
        newest = CheckpointRef(slot=0, step=step, attempt_id=name)
        for _ in range(COMMITS):
            step += _STEPS
            at = slot + len(entries) + 1
            newest = CheckpointRef(slot=at, step=step, attempt_id=name)
            entries.append((CommitEntry, {"attempt_id": name, "manifest": _manifest(name, step)}, epoch))
            entries.append((SealEntry, {"attempt_id": name, "checkpoint": newest, "rows": _rows(step)}, epoch))
        entries.append((ReportEntry, {"report": _report(plan, name, newest)}, epoch))
        parent = newest
        for kind, fields, of_epoch in entries:
            slot += 1
            yield plan, kind.model_validate(stamp(of_epoch) | fields)


def _claim(segment: int, name: str) -> dict[str, Any]:
    where = {"host": "gpu-node-17", "trainer_pid": 4711, "segment_pid": 4700, "environment": _HERE}
    return {"attempt_id": name, "segment": segment, "attempt": 1, "capacity": Capacity.SPOT} | where


def _manifest(name: str, step: int) -> Manifest:
    shard = Shard(keys.shard_name(name, step, 0), 500_000_000, 16 * 2**20, tuple(range(10**9, 10**9 + 30)))
    digests = {part: uuid.uuid4().hex for part in ("model", "optimizer", "scheduler", "streams", "data", "extra")}
    facts: dict[str, Any] = {"shards": (shard,), "components": digests, "environment": _HERE, "tensor_count": 400}
    return Manifest(step=step, samples_seen=step * 32, epoch=step // 10_000, **facts)


def _rows(step: int) -> tuple[WitnessRow, ...]:
    return tuple(
        WitnessRow(
            step=step + offset,
            loss=2.3456789 / (step + offset),
            grad_norm=1.23456789,
            param_norm=98.7654321,
            lr=(0.001,),
            batch_fingerprint=uuid.uuid4().hex[:16],
            input_fingerprint=uuid.uuid4().hex[:16],
        )
        for offset in range(1, 9)
    )


def _report(plan: SegmentPlan, name: str, ref: CheckpointRef) -> SegmentReport:
    steps = _STEPS * COMMITS
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=name,
        capacity=plan.capacity,
        stop_reason=StopReason.NOTICE,
        from_step=ref.step - steps,
        to_step=ref.step + 100,
        checkpoint=ref,
        lost_steps=100,
        seconds=steps * _STEP_SECONDS + 90,
        train_seconds=steps * _STEP_SECONDS,
        train_steps=steps,
        startup_seconds=80.0,
        save_seconds=4.0,
    )
