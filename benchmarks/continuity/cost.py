"""The cost of continuity for a training step: seconds, from pairs of steps with and without continuity, and bytes in
the store.

`python -m benchmarks.continuity.cost` measures nothing else.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.continuity import recipes
from benchmarks.continuity.step.parts import cost_by_part, plain
from benchmarks.continuity.step.plain import PlainScript
from benchmarks.continuity.step.stepwise import WITNESS_STEPS, Step, StepKind, attempt_by_steps
from benchmarks.continuity.tasks import workplace
from benchmarks.continuity.trial import RUN_ID, spec_of
from segue.checkpoints.format.snapshot import digest, take
from segue.data.streams import seed_all
from segue.recipe import Recipe
from segue.records import Heartbeat, WitnessRow
from segue.reports.console import show_json
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, SealEntry, encode
from segue.spec import RunSpec
from segue.stores import LocalStore
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.state import capture

T = TypeVar("T")

STEP_SECONDS = 0.020
COMMIT_EVERY_STEPS = 100
_MEASURED_COMMIT_EVERY = 32
"""Save interval during the measurement, with which a quarter of the steps are witness steps."""
_HEARTBEAT_SECONDS = 2.0
_WARM_UP, _TRIES = 32, 30
_PAIRS, _CURVE_STEPS = 1000, 1000
_FIRST_BATCH, _BATCHES = 32, 100
_RECIPE = "benchmarks.continuity.cost:build"


@dataclass(frozen=True)
class Cost:
    """Figures of the cost; seconds are medians."""

    step_seconds: float
    """Seconds of a bare step."""
    step_overhead_seconds: float
    """Additional seconds of a step without a witness row: the sum of all parts."""
    witness_seconds: float
    """Additional seconds of a step with a witness row. There are eight such steps after each commit."""
    digest_seconds: float
    """Seconds of the digests of a whole state, once for each commit in the writer process, and once for each
    restore."""
    heartbeat_seconds: float
    cost_by_part: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Microseconds of a plain step and of a witness step, and bytes for each step, by part."""
    paired_overhead_seconds: float | None = None
    """`step_overhead_seconds`, measured by pairs of whole steps: a bare step and a real step in turn."""
    paired_error_seconds: float | None = None
    """Standard error of the overhead by pairs of steps."""

    @property
    def step_overhead_share(self) -> float:
        """Share of a step of 20 ms, with a commit every 100 steps and a heartbeat every 2 s, all on one core."""
        rare = self.digest_seconds / COMMIT_EVERY_STEPS + self.heartbeat_seconds * STEP_SECONDS / _HEARTBEAT_SECONDS
        share = WITNESS_STEPS / COMMIT_EVERY_STEPS
        steps = (1 - share) * self.step_overhead_seconds + share * self.witness_seconds
        return (steps + rare) / STEP_SECONDS


def measure_cost(*, pairs: int) -> Cost:
    """Time `pairs` pairs of steps in turn: a step of a plain script, and a step of a real attempt."""
    torch.set_num_threads(1)
    spec = measured_spec(_config_of_step(), steps=_WARM_UP + pairs)
    bare, differences, digests = list[float](), dict[StepKind, list[float]](), list[float]()
    script: PlainScript | None = None

    def visit(live: LiveRecipe, make: Step) -> None:
        nonlocal script
        script = script or PlainScript(live.recipe)
        step = live.progress.step + 1
        if step % 2:
            (_, bare_seconds), (kind, seconds) = _timed(script.step), _timed(make)
        else:
            (kind, seconds), (_, bare_seconds) = _timed(make), _timed(script.step)
        if step > _WARM_UP:
            bare.append(bare_seconds)
            differences.setdefault(kind, []).append(seconds - bare_seconds)
        if step == _WARM_UP:
            digests.extend(_timed(lambda: digest(take(capture(live.components), copy=False)))[1] for _ in range(_TRIES))

    attempt_by_steps(spec, visit)
    parts = cost_by_part(spec, skipped=_WARM_UP, commit_every=COMMIT_EVERY_STEPS)
    pairs_of = {kind: statistics.median(found) for kind, found in differences.items()}
    return Cost(
        step_seconds=statistics.median(bare),
        step_overhead_seconds=1e-6 * sum(part["plain_microseconds"] for part in parts.values()),
        witness_seconds=1e-6 * sum(part["witness_microseconds"] for part in parts.values()),
        digest_seconds=statistics.median(digests),
        heartbeat_seconds=_heartbeat_seconds(),
        cost_by_part=parts,
        paired_overhead_seconds=plain(pairs_of),
        paired_error_seconds=_error_of_median(differences[StepKind.PLAIN]),
    )


def bytes_per_step(*, steps: int) -> dict[str, float]:
    """The bytes that a step adds to the store besides checkpoints, from a real run with a commit every 100 steps.
    `bytes_per_step` has its row of the loss curve and its share of the seals. The bytes of commit records and of all
    other records are separate figures.
    """
    spec = measured_spec({"model": "flights"}, steps=steps, commit_every=COMMIT_EVERY_STEPS)
    stored = attempt_by_steps(spec, lambda _, make: make())
    curve = stored.curve_bytes
    seals = sum(len(encode(entry)) for entry in stored.entries if isinstance(entry, SealEntry))
    commits = sum(len(encode(entry)) for entry in stored.entries if isinstance(entry, CommitEntry))
    return {
        "bytes_per_step": round((curve + seals) / steps, 1),
        "curve_bytes_per_step": round(curve / steps, 1),
        "seal_bytes_per_step": round(seals / steps, 1),
        "commit_record_bytes_per_step": round(commits / steps, 1),
    }


def build(config: dict[str, Any]) -> Recipe:
    """A recipe of the matrix without its scaler, which a plain script would also have to call."""
    recipe = recipes.build(config)
    recipe.scaler = None
    return recipe


def measured_spec(config: Mapping[str, Any], *, steps: int, commit_every: int = _MEASURED_COMMIT_EVERY) -> RunSpec:
    """A run of the recipe of this module."""
    spec = spec_of(config, seed=0)
    # A save that is still being copied while the next step begins is measured by `bench checkpoint`.
    saves = {"every_steps": commit_every, "staging": "blocking"}
    changed = {"steps": steps, "checkpoints": spec.checkpoints.model_copy(update=saves)}
    return spec.model_copy(update={**changed, "recipe": _RECIPE})


def _config_of_step() -> dict[str, Any]:
    """The config of a recipe whose batch is so large that a plain step takes about 20 ms on this machine."""
    size = _FIRST_BATCH
    while True:
        seed_all(0)
        config = {"model": "text", "batch_size": size, "samples": max(size, 1500), "optimizer": "adamw"}
        script = PlainScript(build(config))
        seconds = statistics.median(_timed(script.step)[1] for _ in range(_TRIES))
        if seconds >= 0.8 * STEP_SECONDS or size >= 2048:
            # Fewer batches to an epoch than any real run has would make the order of its samples look expensive.
            return config | {"samples": _BATCHES * size}
        size = min(max(int(size * min(STEP_SECONDS / seconds, 4.0)), size + 8), 2048)


def _error_of_median(found: Sequence[float]) -> float:
    """Standard error of normally distributed values, from their quartiles."""
    first, _, third = statistics.quantiles(found)
    return 1.253 * (third - first) / 1.349 / math.sqrt(len(found))


def _heartbeat_seconds() -> float:
    """Write one heartbeat with eight rows into a folder, as the heartbeat thread does."""
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

        return statistics.median(_timed(beat)[1] for _ in range(_TRIES))


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    found = work()
    return found, time.perf_counter() - started


def main() -> None:
    """Measure the cost alone and print it as one JSON object."""
    found = measure_cost(pairs=_PAIRS)
    share = {"step_overhead_share": round(found.step_overhead_share, 5)}
    show_json({**asdict(found), **share, **bytes_per_step(steps=_CURVE_STEPS)})


if __name__ == "__main__":
    main()
