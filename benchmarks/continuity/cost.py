"""What continuity costs a training step: seconds, by pairs of steps with and without it, and bytes in the store."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.continuity.recipes import build
from benchmarks.continuity.tasks import workplace
from benchmarks.continuity.trial import RUN_ID, spec_of
from segue.checkpoints.format.snapshot import digest, take
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.verdict import Prelude
from segue.continuity.witness import NORMS_EVERY_STEPS, Witness
from segue.curves.schema import Curve
from segue.data.loader import Batch, Feed
from segue.data.streams import seed_all
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.recipe import Recipe
from segue.records import Capacity, Heartbeat, SegmentPlan, WitnessRow
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, SealEntry, encode
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from segue.trainer.attempt import run_attempt
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import RNG_PREFIX, capture, components_of
from segue.trainer.workloads.step import do_step
from segue.trainer.workloads.step_result import row_of

STEP_SECONDS = 0.020
COMMIT_EVERY_STEPS = 100
_WITNESS_STEPS = 8
_HEARTBEAT_SECONDS = 2.0
_WARM_UP, _TRIES = 10, 30
_FIRST_BATCH = 64


@dataclass(frozen=True)
class Cost:
    """Figures of the cost; seconds are medians."""

    step_seconds: float
    """Of a bare step."""
    step_overhead_seconds: float
    """More than that, of a step that bears no witness."""
    witness_seconds: float
    """More than a bare step, of one that does: eight after each commit."""
    digest_seconds: float
    """Of a whole state, once for each commit: in the writer process, and while restoring."""
    heartbeat_seconds: float

    @property
    def step_overhead_share(self) -> float:
        """Of a step of 20 ms, with a commit every 100 steps and a heartbeat every 2 s, all on one core."""
        rare = self.digest_seconds / COMMIT_EVERY_STEPS + self.heartbeat_seconds * STEP_SECONDS / _HEARTBEAT_SECONDS
        share = _WITNESS_STEPS / COMMIT_EVERY_STEPS
        steps = (1 - share) * self.step_overhead_seconds + share * self.witness_seconds
        return (steps + rare) / STEP_SECONDS


def measure_cost(*, pairs: int) -> Cost:
    """Time `pairs` of steps, one bare and one as segue does it, in turn, on the same batches."""
    torch.set_num_threads(1)
    recipe, feed = _sized()
    batches = feed.batches(0)
    witnessed = _Witnessed(recipe)
    bare: list[float] = []
    differences: dict[bool, list[float]] = {False: [], True: []}
    steps = (partial(_bare_step, recipe), witnessed.step)
    for number in range(_WARM_UP + pairs):
        batch, seconds = next(batches), [0.0, 0.0]
        bears = witnessed.bears_witness
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which] = _seconds_of(partial(steps[which], batch))
        if number >= _WARM_UP:
            bare.append(seconds[0])
            differences[bears].append(seconds[1] - seconds[0])
    return Cost(
        step_seconds=statistics.median(bare),
        step_overhead_seconds=max(statistics.median(differences[False]), 0.0),
        witness_seconds=max(statistics.median(differences[True]), 0.0),
        digest_seconds=statistics.median(_seconds_of(witnessed.digest) for _ in range(_TRIES)),
        heartbeat_seconds=_heartbeat_seconds(),
    )


def bytes_per_step(*, steps: int) -> dict[str, float]:
    """What a step leaves in the store besides checkpoints, from a real run with a commit every 100 steps.

    `bytes_per_step` are its row of the loss curve and its share of the seals; what a commit's own record and all
    others add is given apart.
    """
    spec = spec_of({"model": "flights"}, seed=0).model_copy(update={"steps": steps})
    spec = spec.model_copy(
        update={"checkpoints": spec.checkpoints.model_copy(update={"every_steps": COMMIT_EVERY_STEPS})}
    )
    with tempfile.TemporaryDirectory(prefix="segue-continuity-", dir=workplace()) as name:
        store = LocalStore(Path(name)).create()
        plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="bench")
        clock, runlog = SystemClock(), RunLog(store, RUN_ID)
        assignment = Assignment(spec=spec, plan=plan)
        run_attempt(assignment, runlog=runlog, board=NoticeBoard(clock), clock=clock, shards=InlineWriter([store]))
        curve = sum(item.size_bytes for item in store.list_objects(f"{RUN_ID}/") if item.key.endswith(".parquet"))
        entries = [slot.entry for slot in runlog.reload().slots]
    seals = sum(len(encode(entry)) for entry in entries if isinstance(entry, SealEntry))
    commits = sum(len(encode(entry)) for entry in entries if isinstance(entry, CommitEntry))
    return {
        "bytes_per_step": round((curve + seals) / steps, 1),
        "curve_bytes_per_step": round(curve / steps, 1),
        "seal_bytes_per_step": round(seals / steps, 1),
        "commit_record_bytes_per_step": round(commits / steps, 1),
    }


class _Witnessed:
    """A step as the training loop does it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._progress = recipe, Progress()
        self._components = components_of(recipe, self._progress, name="bench")
        self._witness = Witness(_WITNESS_STEPS)
        self._curve = Curve(run="bench", segment=0, attempt=1, attempt_id="0", capacity="spot")

    @property
    def bears_witness(self) -> bool:
        """Whether the next step does; every other eight, here."""
        return self._progress.step % (2 * _WITNESS_STEPS) < _WITNESS_STEPS

    def step(self, batch: Batch) -> None:
        step = self._progress.step + 1
        started = time.monotonic()
        if self._progress.step % (2 * _WITNESS_STEPS) == 0:
            self._witness.open(self._progress.step)
        is_kept = self._witness.wants(step)
        prelude = self._prelude(step, batch) if is_kept else Prelude(step, "", "", None)
        with_norms = is_kept or step % NORMS_EVERY_STEPS == 0
        row = row_of(prelude, do_step(self._recipe, [batch.content], step=step, with_norms=with_norms).outcome)
        self._progress.step = step
        self._progress.samples_seen += len(batch.ids)
        self._witness.add(row)
        self._witness.take_full()
        seconds = time.monotonic() - started
        self._curve.add(row, epoch=0, samples_seen=0, step_seconds=seconds, wall_time=datetime.now(UTC))

    def _prelude(self, step: int, batch: Batch) -> Prelude:
        held = {name: c.capture() for name, c in self._components.items() if name.startswith(RNG_PREFIX)}
        streams = streams_fingerprint(held)
        return Prelude(step, batch_fingerprint(batch.ids), input_fingerprint(batch.content), streams)

    def digest(self) -> None:
        digest(take(capture(self._components), copy=False))


def _bare_step(recipe: Recipe, batch: Batch) -> None:
    """What a plain training script does with the same recipe."""
    recipe.optimizer.zero_grad(set_to_none=True)
    loss = recipe.loss(recipe.model, batch.content)
    loss.backward()
    if recipe.clip_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(recipe.model.parameters(), recipe.clip_grad_norm)
    recipe.optimizer.step()
    recipe.scheduler.step()
    if recipe.after_step is not None:
        recipe.after_step(1)
    float(loss.detach())


def _sized() -> tuple[Recipe, Feed]:
    """A recipe whose bare step takes about 20 ms here: its batch is as large as that needs."""
    size = _FIRST_BATCH
    while True:
        seed_all(0)
        recipe = build({"model": "digits", "batch_size": size, "samples": max(size, 1500), "optimizer": "adamw"})
        recipe.scaler = None
        feed = Feed(recipe.data, recipe="bench", seed=0)
        batch = next(feed.batches(0))
        seconds = statistics.median(_seconds_of(partial(_bare_step, recipe, batch)) for _ in range(_TRIES))
        if seconds >= 0.8 * STEP_SECONDS or size >= 2048:
            return recipe, feed
        size = min(max(int(size * min(STEP_SECONDS / seconds, 4.0)), size + 8), 2048)


def _heartbeat_seconds() -> float:
    """One beat, with eight rows on board, as its thread puts it into a folder."""
    row = WitnessRow(
        step=1,
        loss=0.1,
        grad_norm=0.1,
        param_norm=0.1,
        lr=(0.1,),
        batch_fingerprint="0" * 16,
        input_fingerprint="0" * 16,
    )
    with tempfile.TemporaryDirectory(prefix="segue-continuity-", dir=workplace()) as name:
        store = LocalStore(Path(name)).create()

        def beat() -> None:
            made = Heartbeat(
                attempt_id="0",
                counter=1,
                phase="training",
                step=1,
                trainer_pid=1,
                rows=(row,) * 8,
                beat_at=datetime.now(UTC),
            )
            store.put(keys.heartbeat_key(RUN_ID, "0"), made.model_dump_json().encode(), durable=False)

        return statistics.median(_seconds_of(beat) for _ in range(_TRIES))


def _seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
