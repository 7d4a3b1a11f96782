"""A program's current step and its numbers. Either the program reports the numbers, or segue measures the tracked
objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.curves.curve_rows import NO_METRICS
from segue.errors import SessionError
from segue.trainer.programs.batches import SessionBatch
from segue.trainer.ranks.collectives import Ranks, StepNumbers, combined
from segue.trainer.ranks.ddp import parameter_norm, total_norm
from segue.trainer.workloads.base import LateStep, StepDue, StepMade
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.state import RNG_PREFIX
from segue.trainer.workloads.steps.step_result import Number, as_of_now, on_host, rates_of, row_of, scale_of, sent


class _Reported(NamedTuple):
    """The numbers that the program reported for a step, copied at the time of the report."""

    loss: Number
    lr: tuple[Number, ...] | None
    grad_norm: Number | None
    metrics: Mapping[str, Number]


@dataclass
class _Step:
    """The numbers of the current step so far."""

    with_norms: bool = False
    reported: _Reported | None = None
    grad_norms: list[torch.Tensor] = field(default_factory=list)
    rates: dict[int, list[Number]] = field(default_factory=dict)
    """Learning rates that each optimizer used in this step, by the optimizer's id."""


_Found = tuple[StepNumbers, Mapping[str, float]]
"""The numbers of a step, and its further metrics."""


class Measured(NamedTuple):
    """The measured numbers of a step."""

    read: Callable[[], _Found]
    """A function that waits for the measured numbers and returns them."""
    is_late: bool
    """Whether an accelerator still computes the numbers."""


class Measures:
    """An object that measures the steps of tracked optimizers, and returns the numbers of each step."""

    def __init__(self) -> None:
        self._parameters: list[torch.Tensor] = []
        self._tracked: frozenset[str] = frozenset()
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self._optimizer_ids: frozenset[int] = frozenset()
        self._scaler: torch.amp.GradScaler | None = None
        self._step = _Step()
        self._hook = register_optimizer_step_post_hook(self._after_update)

    def close(self) -> None:
        """Remove the hook that this object has registered with torch."""
        self._hook.remove()

    def watch(self, tracked: Mapping[str, Any], *, measured: Mapping[str, Any]) -> None:
        """Measure the modules, optimizers and scalers in both mappings. Objects in `measured` are not saved."""
        objects = {**measured, **tracked}
        self._tracked = frozenset(tracked)
        held = nn.ModuleList(each for each in objects.values() if isinstance(each, nn.Module))
        self._parameters = list(held.parameters())
        # A framework's wrapper around an optimizer is an optimizer too, but the inner optimizer makes the steps.
        self.optimizers = {
            name: getattr(each, "optimizer", each)
            for name, each in objects.items()
            if isinstance(each, torch.optim.Optimizer)
        }
        self._optimizer_ids = frozenset(map(id, self.optimizers.values()))
        self._scaler = next((each for each in objects.values() if isinstance(each, torch.amp.GradScaler)), None)

    def begin(self, *, with_norms: bool) -> None:
        """Begin a step. If `with_norms` is False, only norms that the program itself reports are known."""
        self._step = _Step(with_norms)

    @property
    def is_reported(self) -> bool:
        return self._step.reported is not None

    def report(self, loss: Any, *, lr: Any, grad_norm: Any, metrics: Mapping[str, Any]) -> None:
        rates = None if lr is None else tuple(lr) if isinstance(lr, Sequence) else (lr,)
        names = list(metrics)
        given = as_of_now([loss, *metrics.values(), *([] if grad_norm is None else [grad_norm]), *(rates or ())])
        kept = given[1 : 1 + len(names)]
        rest = given[1 + len(names) :]
        self._step.reported = _Reported(
            loss=given[0],
            lr=None if rates is None else tuple(rest[len(rest) - len(rates) :]),
            grad_norm=None if grad_norm is None else rest[0],
            metrics=dict(zip(names, kept, strict=True)) if names else NO_METRICS,
        )

    def outcome(self, step: int) -> _Found | Measured:
        """Return the numbers of the completed step. If an accelerator may still compute the numbers, return a
        `Measured`, which reads the numbers later.

        Raises:
            SessionError: the program reported nothing in this step.
        """
        if self._step.reported is None:
            what = f"the program reported nothing in step {step}."
            fix = "call run.report(loss=loss) once in each iteration, and on every rank."
            raise SessionError(what=what, fix=fix)
        loss, rates, grad_norm, metrics = self._step.reported
        if rates is None:
            used, rates = self._step.rates, ()
            for each in self.optimizers.values():
                rates = (*rates, *(used.get(id(each)) or rates_of(each)))
        has_norms = self._step.with_norms and grad_norm is None
        # The numbers are copied, because the program may make another update before they are read.
        norms = list(self._step.grad_norms) if has_norms else [] if grad_norm is None else [grad_norm]
        weights = [self._norm_of_parameters()] if self._step.with_norms else []
        scale = scale_of(self._scaler) if self._scaler is not None else []
        asked = [loss, *rates, *norms, *weights, *scale, *metrics.values()]

        def shown(found: list[float]) -> _Found:
            values = iter(found)
            outcome = StepNumbers(
                loss=next(values),
                lr=tuple(islice(values, len(rates))),
                grad_norm=math.hypot(*islice(values, len(norms))) if norms or has_norms else None,
                param_norm=next(values) if weights else None,
                loss_scale=next(values) if scale else None,
            )
            return outcome, dict(zip(metrics, values, strict=True)) if metrics else NO_METRICS

        found = on_host(asked)
        if found is not None:
            return shown(found)
        # All numbers are read together, because each read waits for an accelerator.
        on_its_way = sent(asked)
        return Measured(lambda: shown(on_its_way.read()), on_its_way.is_late)

    def parameter_norm(self) -> float:
        """Norm of all parameters of the measured modules."""
        return float(self._norm_of_parameters())

    def _norm_of_parameters(self) -> Number:
        return parameter_norm(self._parameters) if self._parameters else 0.0

    def pending_gradients(self) -> dict[str, torch.Tensor]:
        """Gradients that no optimizer has used yet, because the program accumulates them over several iterations."""
        return {
            f"{name}.{number}": parameter.grad
            for name, optimizer in self.optimizers.items()
            if name in self._tracked and id(optimizer) not in self._step.rates
            for number, parameter in enumerate(parameters_of(optimizer))
            if parameter.grad is not None
        }

    def restore_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        for name, optimizer in self.optimizers.items():
            for number, parameter in enumerate(parameters_of(optimizer) if name in self._tracked else ()):
                gradient = gradients.get(f"{name}.{number}")
                parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in self._optimizer_ids:
            self._step.rates[id(optimizer)] = rates_of(optimizer)
            if self._step.with_norms:
                found = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
                self._step.grad_norms.append(total_norm(found))


class PendingGradients:
    """A component for gradients that are accumulated over several iterations, if there is a safe point between two of
    the iterations."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def capture(self) -> Any:
        return self._measures.pending_gradients()

    def restore(self, tree: Any) -> None:
        self._measures.restore_gradients(tree)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all parameter groups of the optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


_NO_IDS = np.zeros(0, np.uint64)


class StepInProgress:
    """The step that is in progress. There is one step at a time. A step is opened at a safe point, and closed at the
    next safe point."""

    def __init__(
        self, progress: Progress, *, components: Mapping[str, Component], measures: Measures, ranks: Ranks
    ) -> None:
        self._progress, self._components = progress, components
        self._measures, self._ranks = measures, ranks
        self._opened: tuple[StepDue, Prelude, SessionBatch | None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self._opened is not None

    def open(self, due: StepDue, batch: SessionBatch | None, *, compare_state: bool) -> None:
        """First compare the inputs of the due step with the run, and then begin the step. If the comparison raises an
        error, no step begins."""
        prelude = self._prelude(batch, with_fingerprints=due.needs_fingerprints)
        if due.needs_fingerprints:
            due.check(prelude, compare_state=compare_state)
        self._opened = due, prelude, batch
        self._measures.begin(with_norms=due.needs_norms)

    def close(self, *, epoch: int) -> StepMade | LateStep | None:
        """Close the open step as a step of this epoch, and return its outcome. Return None if no step is open."""
        if self._opened is None:
            return None
        (due, prelude, batch), progress, ranks = self._opened, self._progress, self._ranks
        measured = self._measures.outcome(prelude.step)
        self._opened = None
        ids = batch.ids if batch is not None else _NO_IDS
        # If the samples of a step are unknown, the step counts as one sample.
        start, samples = progress.samples_seen, max(len(ids), 1)

        def made(found: _Found, *, is_alone: bool) -> StepMade:
            outcome, metrics = found
            row = row_of(prelude, outcome) if is_alone else _row_on(ranks, prelude, outcome)
            return StepMade(row, start, samples, ids, epoch, metrics)

        if not isinstance(measured, Measured):
            return made(measured, is_alone=ranks.count == 1)
        if not (measured.is_late and due.may_be_late):
            return made(measured.read(), is_alone=False)
        return LateStep(
            start,
            samples,
            read=lambda: made(measured.read(), is_alone=False),
            read_alone=lambda: made(measured.read(), is_alone=True),
        )

    def _prelude(self, batch: SessionBatch | None, *, with_fingerprints: bool) -> Prelude:
        step = self._progress.step + 1
        if not with_fingerprints:
            return Prelude(step, "", "", None)
        held = {name: c.capture() for name, c in self._components.items() if name.startswith(RNG_PREFIX)}
        ids = batch_fingerprint(batch.ids) if batch is not None and len(batch.ids) else ""
        content = input_fingerprint(batch.content) if batch is not None else ""
        # The row is the same on every rank, like the rows of a recipe.
        streams = streams_fingerprint(held) if self._ranks.count == 1 else None
        return Prelude(step, ids, content, streams)


def _row_on(ranks: Ranks, prelude: Prelude, outcome: StepNumbers) -> StepRow:
    """Make the row of a step; the row is equal on every rank."""
    if ranks.count > 1:
        fingerprints = (prelude.batch_fingerprint, prelude.input_fingerprint)
        outcome, (samples, content) = combined(ranks, outcome, weight=1.0, fingerprints=fingerprints)
        prelude = prelude._replace(batch_fingerprint=samples, input_fingerprint=content)
    return row_of(prelude, outcome)
