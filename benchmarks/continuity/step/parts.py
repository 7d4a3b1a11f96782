"""The time of each part of continuity in a step: a real attempt, with a stopwatch around the functions of each part.
After each step of the attempt, a plain script makes a step with the same objects, under the same stopwatch. Functions
that both call (the loss, backward, optimizer, scheduler, loader) count for no part. The remaining time of the plain
script is subtracted.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.continuity.step.plain import PlainScript
from benchmarks.continuity.step.stepwise import WITNESS_STEPS, Step, StepKind, Stored, attempt_by_steps
from segue.continuity import anomalous_steps
from segue.continuity.witness import NORMS_EVERY_STEPS, Witness
from segue.curves.curve_rows import Curve
from segue.data.order import SampleOrder
from segue.runlog.entries import SealEntry, encode
from segue.spec import RunSpec
from segue.trainer.health.activity import Activity
from segue.trainer.safe_points import SafePoints
from segue.trainer.save_schedule import SavesInFlight
from segue.trainer.time_left import Pace
from segue.trainer.workloads import live_recipe
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.steps import step, step_result

_NORM, _STEP, _LOOP = "gradient norm and clip", "rest of the step", "rest of the loop"
_TRAINING, _PLAIN_CLIP, _PLAIN_REST = "training", "a plain clip", "rest of a plain step"
_FUNCTIONS: dict[str, tuple[tuple[Any, str], ...]] = {
    "sample order": ((SampleOrder, "batch"), (SampleOrder, "is_epoch_over")),
    "fingerprint of ids": ((live_recipe, "batch_fingerprint"),),
    "fingerprint of inputs": ((live_recipe, "input_fingerprint"),),
    "fingerprints of streams": ((live_recipe, "streams_fingerprint"), (LiveRecipe, "prelude")),
    _NORM: ((step, "norm_and_clip"), (step.ParameterOrder, "of")),
    "parameter norm": ((step_result, "parameter_norm"),),
    "numbers and row": ((step_result, "on_host"), (step_result, "sent"), (live_recipe, "row_of")),
    "state after the steps": ((LiveRecipe, "state_marks"),) if hasattr(LiveRecipe, "state_marks") else (),
    "anomalies": ((anomalous_steps, "symptom"), (anomalous_steps, "with_loss")),
    "witness rows": ((Witness, "wants"), (Witness, "add"), (Witness, "take_full")),
    "row of the curve": ((Curve, "add"),),
    "activity and pace": ((Activity, "step_done"), (Pace, "step_done"), (SavesInFlight, "step_done")),
    "safe point": ((SafePoints, "vote"),),
    _STEP: ((LiveRecipe, "make_step"),),
    _LOOP: (),
}
PARTS = tuple(_FUNCTIONS)
_OF_PLAIN = {_NORM: _PLAIN_CLIP, _STEP: _PLAIN_REST}
_BY_BOTH: dict[str, tuple[tuple[Any, str], ...]] = {
    _TRAINING: (
        (torch.Tensor, "backward"),
        (torch.optim.AdamW, "step"),
        (torch.optim.AdamW, "zero_grad"),
        (torch.optim.lr_scheduler.CosineAnnealingLR, "step"),
        (_BaseDataLoaderIter, "__next__"),
    ),
    _PLAIN_CLIP: ((torch.nn.utils, "clip_grad_norm_"),),
}
"""Include the recipe's loss and `after_step`, which are not attributes of a module or class."""
_FIELDS = {
    "batch_fingerprint": "fingerprint of ids",
    "input_fingerprint": "fingerprint of inputs",
    "streams": "fingerprints of streams",
    "grad_norm": _NORM,
    "param_norm": "parameter norm",
    "state": "state after the steps",
}
"""The part that each field of a witness row comes from. Other fields are counted as `witness rows`."""
_CALIBRATIONS, _SLOWEST = 2000, 0.05


class Stopwatch:
    """Adds up the processor time of each part, without that of other parts within it."""

    def __init__(self) -> None:
        self._within: list[float] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds of each part since the last `restart`."""
        self._own_seconds = 0.0
        self._own_seconds = self._calibrated()

    def restart(self) -> defaultdict[str, float]:
        """Return the times so far, and start again at zero."""
        found, self.seconds = self.seconds, defaultdict(float)
        return found

    @contextmanager
    def timing(self, functions: Mapping[str, Sequence[tuple[Any, str]]]) -> Iterator[None]:
        """Time these functions, for each part as pairs of owner and name, until the block ends."""
        with ExitStack() as opened:
            for part, places in functions.items():
                for owner, name in places:
                    opened.enter_context(mock.patch.object(owner, name, self.timed(part, getattr(owner, name))))
            yield

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function so that its time counts for a part."""
        # Of this thread: other processes on the same core do not count.
        within, clock = self._within, time.thread_time

        def timed(*args: Any, **names: Any) -> Any:
            within.append(0.0)
            started = clock()
            try:
                return function(*args, **names)
            finally:
                seconds = clock() - started
                self.seconds[part] += seconds - within.pop()
                if within:
                    within[-1] += seconds + self._own_seconds

        return timed

    def _calibrated(self) -> float:
        """The time that the timing of a function adds to its caller."""
        inner = self.timed("inner", lambda: None)

        def outer() -> None:
            for _ in range(_CALIBRATIONS):
                inner()

        self.timed("outer", outer)()
        return self.restart()["outer"] / _CALIBRATIONS


def cost_by_part(spec: RunSpec, *, skipped: int, commit_every: int) -> dict[str, dict[str, float]]:
    """For each part, microseconds of a plain step and of a witness step, and bytes for each step with this number of
    steps between commits.

    A plain step is the mean of the steps between two saves, of which few measure norms. The recipe trains by AdamW and
    a cosine.
    """
    found, stored = _timed_attempt(spec, skipped=skipped)
    per_seal = _bytes_of_seals(stored)
    per_seal |= {"row of the curve": stored.curve_bytes / spec.steps * commit_every}
    return {
        part: {
            "plain_microseconds": round(1e6 * plain(_means(found, part)), 1),
            "witness_microseconds": round(1e6 * witnessed(_means(found, part)), 1),
            "bytes": round(per_seal.get(part, 0.0) / commit_every, 2),
        }
        for part in PARTS
    }


def plain(seconds: Mapping[StepKind, float]) -> float:
    """The mean over steps. One of `NORMS_EVERY_STEPS` steps measures norms."""
    share = 1 / NORMS_EVERY_STEPS
    return (1 - share) * seconds[StepKind.PLAIN] + share * seconds[StepKind.NORMS]


def witnessed(seconds: Mapping[StepKind, float]) -> float:
    """The mean over the steps of a window."""
    return ((WITNESS_STEPS - 1) * seconds[StepKind.WITNESS] + seconds[StepKind.LAST]) / WITNESS_STEPS


def _timed_attempt(spec: RunSpec, *, skipped: int) -> tuple[dict[StepKind, list[defaultdict[str, float]]], Stored]:
    watch = Stopwatch()
    found: dict[StepKind, list[defaultdict[str, float]]] = {}
    script: PlainScript | None = None

    def visit(live: LiveRecipe, make: Step) -> None:
        nonlocal script
        if script is None:
            recipe = live.recipe
            script = PlainScript(recipe)
            recipe.loss = watch.timed(_TRAINING, recipe.loss)
            recipe.after_step = watch.timed(_TRAINING, recipe.after_step) if recipe.after_step else None
        watch.restart()
        watch.timed(_PLAIN_REST, script.step)()
        kind = watch.timed(_LOOP, make)()
        seconds = watch.restart()
        if live.progress.step > skipped:
            found.setdefault(kind, []).append(seconds)

    with watch.timing(_FUNCTIONS | _BY_BOTH):
        stored = attempt_by_steps(spec, visit)
    return found, stored


def _means(found: Mapping[StepKind, Sequence[Mapping[str, float]]], part: str) -> dict[StepKind, float]:
    """The mean over the steps of each kind, without the slowest steps, in which other processes used the core."""
    means = {kind: _mean([seconds[part] for seconds in steps]) for kind, steps in found.items()}
    if part not in _OF_PLAIN:
        return means
    both = _mean([seconds[_OF_PLAIN[part]] for steps in found.values() for seconds in steps])
    return {kind: mean - both for kind, mean in means.items()}


def _mean(found: Sequence[float]) -> float:
    return statistics.mean(sorted(found)[: math.ceil((1 - _SLOWEST) * len(found))])


def _bytes_of_seals(stored: Stored) -> dict[str, float]:
    """Mean bytes of one seal, by the part that its fields come from."""
    seals = [entry for entry in stored.entries if isinstance(entry, SealEntry)]
    found = Counter({"witness rows": sum(len(encode(seal)) for seal in seals)})
    for row in (row for seal in seals for row in seal.rows):
        for name, part in _FIELDS.items():
            size = len(row.model_dump_json()) - len(row.model_dump_json(exclude={name}))
            found.update({part: size})
            found.subtract({"witness rows": size})
    return {part: size / len(seals) for part, size in found.items()}
