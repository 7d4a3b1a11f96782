"""Code that all types of steps share: the transfer of a step's numbers to the host, the result of a step, and the work
after a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from segue.checkpoints.format.dtensor import whole
from segue.checkpoints.format.snapshot import WITH_STREAMS, on_its_way
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.recipe import Recipe
from segue.trainer.ranks.collectives import StepNumbers
from segue.trainer.ranks.ddp import parameter_norm
from segue.user_objects import attribute

Number = torch.Tensor | float
"""A tensor of one element, or a plain number."""
_WITHIN_FP32 = (torch.float32, torch.bfloat16, torch.float16)
_ONE_BY_ONE = ("mps",)
"""Devices that have no streams, and no data type that can hold every number."""


class Numbers(NamedTuple):
    """Values that are transferred to the host together."""

    read: Callable[[], list[float]]
    """A function that waits for the values, and returns the values in the order of the request."""
    is_late: bool
    """Whether `read` may have to wait for an accelerator."""


def sent(numbers: Sequence[Number]) -> Numbers:
    """Start to copy these numbers to the host. Later changes of the tensors do not change the copied values."""
    there = [number for number in numbers if isinstance(number, torch.Tensor) and number.device.type != "cpu"]
    if not there or there[0].device.type in _ONE_BY_ONE:
        return Numbers([float(each.item() if isinstance(each, torch.Tensor) else each) for each in numbers].copy, False)
    device = there[0].device
    tensors = [whole(number) for number in numbers if isinstance(number, torch.Tensor)]
    copied = on_its_way(together(tensors, device))

    def read() -> list[float]:
        found = iter(copied().tolist())
        return [next(found) if isinstance(number, torch.Tensor) else float(number) for number in numbers]

    return Numbers(read, is_late=device.type in WITH_STREAMS)


def on_host(numbers: Sequence[Number]) -> list[float] | None:
    """Return the numbers as floats. If one of them is in an accelerator's memory, return None."""
    values = []
    for number in numbers:
        if isinstance(number, torch.Tensor):
            if number.device.type != "cpu":
                return None
            number = number.item()  # noqa: PLW2901 - once a step, and in every step
        values.append(float(number))
    return values


def as_of_now(numbers: Sequence[Number]) -> list[Number]:
    """Copy the numbers from tensors that may change in place. If a tensor is sharded, all ranks must call this
    function."""
    return [number if type(number) is float else _apart(number) for number in numbers]


def _apart(number: Number) -> Number:
    if not isinstance(number, torch.Tensor):
        return float(number)
    return float(number.item()) if number.device.type == "cpu" else whole(number).detach().clone()


def together(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Join one-element tensors into one tensor on `device`, in a type that holds each value exactly."""
    kind = torch.float32 if all(tensor.dtype in _WITHIN_FP32 for tensor in tensors) else torch.float64
    return torch.stack([tensor.detach().reshape(()).to(device, kind) for tensor in tensors])


class StepResult(NamedTuple):
    """The measured result of one step."""

    outcome: StepNumbers
    parts: dict[str, float]
    """Parts of the loss, by name. Each part is the mean over the step's batches. If the recipe returns no dict, there
    are no parts."""


class StepBegun(NamedTuple):
    """A step whose work on the host is done. An accelerator may still compute."""

    result: StepResult | None
    """The result; None if the numbers of the result are still in an accelerator's memory."""
    read_late: Callable[[], StepResult] | None = None
    """A function that waits for the numbers and returns the result. The function is None if `result` is known."""
    is_late: bool = False
    """Whether the accelerator may still compute the numbers."""

    def read(self) -> StepResult:
        """Return the result of the step. If necessary, wait for an accelerator."""
        if self.result is not None:
            return self.result
        assert self.read_late is not None
        return self.read_late()


class Shown(NamedTuple):
    """Numbers of a step that the training code has computed."""

    loss: float
    grad_norm: float | None
    parts: dict[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """The step's numbers by name, for the recipe's `after_step`."""
        grad_norm = {} if self.grad_norm is None else {"grad_norm": self.grad_norm}
        return {"loss": self.loss} | grad_norm | self.parts


def row_of(prelude: Prelude, outcome: StepNumbers) -> StepRow:
    """Make the row of a step from its inputs and its numbers."""
    loss, grad_norm, param_norm, lr, loss_scale = outcome
    return StepRow(*prelude, loss, grad_norm, param_norm, lr, loss_scale)


def rates_of(optimizer: torch.optim.Optimizer) -> list[Number]:
    """The current learning rate of each group of the optimizer."""
    return as_of_now([group["lr"] for group in optimizer.param_groups])


def scale_of(scaler: torch.amp.GradScaler | None) -> list[Number]:
    """The current loss scale; empty if there is no scaler."""
    if scaler is None:
        return []
    # `get_scale` waits for the accelerator. The tensor is missing before the first use of a scaler, or if it is off.
    scale = attribute(scaler, "_scale")
    return as_of_now([scale if isinstance(scale, torch.Tensor) else scaler.get_scale()])


def ended(
    recipe: Recipe,
    asked: Sequence[Number],
    shown: Callable[[list[float]], Shown],
    *,
    step: int,
    ends_epoch: bool,
    rates: Sequence[Number],
    scale: Sequence[Number],
    measured: list[torch.Tensor] | None,
) -> StepBegun:
    """Do the work that follows the update, and begin to read the step's numbers.

    `shown` interprets the values of the numbers in `asked`. If `measured` is not None, compute the norm of the
    parameters in `measured`. All numbers are read in one copy. If `after_step` takes metrics, the numbers in `asked`
    are read before `after_step` is called.
    """
    values = on_host(asked)
    if values is not None:
        seen = shown(values)
        follow(recipe, step=step, ends_epoch=ends_epoch, metrics=seen.metrics if recipe.gives_metrics else None)
        param_norm = None if measured is None else float(parameter_norm(measured))
        loss_scale = float(scale[0]) if scale else None
        outcome = StepNumbers(seen.loss, seen.grad_norm, param_norm, tuple(map(float, rates)), loss_scale)
        return StepBegun(StepResult(outcome, seen.parts))
    if recipe.after_step is not None:  # It may change the recipe's tensors in place.
        asked = as_of_now(asked)
    early = shown(sent(asked).read()) if recipe.gives_metrics else None
    follow(recipe, step=step, ends_epoch=ends_epoch, metrics=None if early is None else early.metrics)
    norm = [] if measured is None else [parameter_norm(measured)]
    late = sent([*rates, *scale, *norm, *(() if early is not None else asked)])

    def read() -> StepResult:
        found = iter(late.read())
        own_rates, own_scale = list(islice(found, len(rates))), list(islice(found, len(scale)))
        param_norm = next(found) if norm else None
        seen = early if early is not None else shown(list(found))
        outcome = StepNumbers(
            seen.loss, seen.grad_norm, param_norm, tuple(own_rates), own_scale[0] if own_scale else None
        )
        return StepResult(outcome, seen.parts)

    return StepBegun(None, read, late.is_late)


def follow(recipe: Recipe, *, step: int, ends_epoch: bool, metrics: dict[str, float] | None) -> None:
    """Do the work after an update. Step the schedulers that take no metric, and then call the recipe's `after_step`.

    If `metrics` is not None, `after_step` gets the metrics.
    """
    if ends_epoch or recipe.scheduler_every != "epoch":
        for name, scheduler in recipe.schedulers.items():
            if name not in recipe.by_metric:
                scheduler.step()
    if recipe.after_step is not None and metrics is not None:
        recipe.after_step(step, metrics=metrics)
    elif recipe.after_step is not None:
        recipe.after_step(step)
