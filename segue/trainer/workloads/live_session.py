"""A program with a training loop of its own, as an attempt trains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from segue.continuity.fingerprints import streams_fingerprint
from segue.continuity.recipe_diff import NOT_STATE
from segue.continuity.verdict import Prelude
from segue.errors import SessionError
from segue.records import Notice, StopReason, WitnessRow
from segue.spec import RunSpec
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.ddp import parameter_norm, total_norm
from segue.trainer.workloads.base import StepDue, StepMade, Steps
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.state import PROGRESS, RNG_PREFIX, changed_by_optimizer, rng_components
from segue.trainer.workloads.tracked import components_of_object

Restore = Callable[[Mapping[str, Component]], None]
Begin = Callable[["LiveSession"], Steps]

_NONE = np.zeros(0, np.uint64)


class AttemptEnded(SystemExit):
    """Ends the program at a safe point, because its attempt ends. Not an error."""


class LiveSession:
    """The tracked objects of one program in this process, and its steps. The host of its session."""

    def __init__(self, spec: RunSpec, *, restore: Restore, begin: Begin) -> None:
        """`restore` puts a checkpoint's state into components; `begin` starts the attempt's training loop."""
        self._spec, self._restore, self._begin = spec, restore, begin
        self.progress = Progress()
        self.components: dict[str, Component] = {PROGRESS: self.progress}
        restore(self.components)
        self._objects: list[Any] = []
        self._parameters: list[torch.Tensor] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._scaler: torch.amp.GradScaler | None = None
        self._steps: Steps | None = None
        self._reported: tuple[float, tuple[float, ...] | None, float | None] | None = None
        self._grad_norms: list[torch.Tensor] = []
        self._error: Exception | None = None
        self.reason: StopReason | None = None
        """Why the attempt ends; None while it trains, or when the program left its loop."""

    @property
    def step(self) -> int:
        return self.progress.step

    def track(self, objects: dict[str, Any]) -> None:
        if self._steps is not None:
            what = f"run.track({', '.join(objects)}) came after run.steps() had begun."
            raise SessionError(what=what, fix="track everything before the loop.")
        for name, target in objects.items():
            found = components_of_object(name, target)
            # A dot in a name would make it look like a part of another component, and the reserved are not compared.
            taken = [each for each in found if each in self.components or each in NOT_STATE]
            if taken or not name.isidentifier():
                what = f"run.track({name}=...): the name {(taken or [name])[0]!r} is taken or is no plain name."
                raise SessionError(what=what, fix="give the object another name.")
            self.components |= found
            self._objects.append(target)
            self._restore(found)

    def report(self, loss: Any, *, lr: Any, grad_norm: Any) -> None:
        rates = None if lr is None else tuple(map(_number, lr if isinstance(lr, Sequence) else (lr,)))
        self._reported = (_number(loss), rates, None if grad_norm is None else _number(grad_norm))

    def steps(self, goal: int | None) -> Iterator[int]:
        """The steps that are left; raises AttemptEnded where the attempt ends before the goal."""
        self._require(goal)
        held = nn.ModuleList(each for each in self._objects if isinstance(each, nn.Module))
        self._parameters = list(held.parameters())
        self._optimizers = [each for each in self._objects if isinstance(each, torch.optim.Optimizer)]
        self._scaler = next((each for each in self._objects if isinstance(each, torch.amp.GradScaler)), None)
        streams = rng_components(Ranks(), held)
        self.components |= streams
        self._restore(streams)  # Last: what the program did until here may have drawn from them.
        hook = register_optimizer_step_pre_hook(self._before_update)
        self._steps = self._begin(self)
        try:
            due = next(self._steps)
            while True:
                prelude = self._prelude(due)
                due.check(prelude)
                self._reported, self._grad_norms = None, []
                yield self.progress.step
                due = self._steps.send(self._made(prelude))
        except StopIteration as end:
            self.reason = end.value
        except Exception as error:
            self._error = error  # Kept: a program may catch what is raised here, and go on.
            raise
        finally:
            hook.remove()
        if self.reason is not StopReason.FINISHED:
            raise AttemptEnded(0)

    def conclude(self, error: BaseException | None) -> StopReason:
        """Why the attempt ended, once the program has: by itself, or with `error`, which is raised again if it counts.

        Raises:
            SessionError: the program ended before its goal.
        """
        error = self._error or error
        if self.reason is None and error is not None and self._steps is not None:
            try:
                self._steps.throw(error)  # The loop may go on without the program, if all is committed.
            except StopIteration as end:
                self.reason = end.value
        if isinstance(error, AttemptEnded):
            error = None
        if error is not None and self.reason in (None, StopReason.FINISHED):
            raise error
        if self.reason is None:
            what = f"the program ended at step {self.progress.step} of {self._spec.steps}, before run.steps() did."
            raise SessionError(what=what, fix="let the loop over run.steps() go on until it ends by itself.")
        return self.reason

    @property
    def has_metric(self) -> bool:
        return False

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        return None

    @property
    def epoch(self) -> int:
        return 0

    def steps_to_epoch(self, epoch: int) -> float:
        return math.inf

    def begin(self, *, is_resumed: bool) -> None:
        return

    def left_out(self) -> frozenset[str]:
        return frozenset()

    def advance(self, start: int, count: int) -> None:
        self.progress.step += 1
        self.progress.samples_seen = start + count

    def evaluate(self) -> float:
        raise NotImplementedError("a session has no metric")

    def changed_by_optimizer(self) -> frozenset[int]:
        return frozenset().union(*map(changed_by_optimizer, self._optimizers))

    def _require(self, goal: int | None) -> None:
        if self._steps is not None:
            what = "run.steps() was called a second time."
            raise SessionError(what=what, fix="use one loop over run.steps() for the whole training.")
        if goal is not None and goal != self._spec.steps:
            what = f"the program asks for {goal} steps, and the goal of the run is {self._spec.steps}."
            fix = f"give the run --steps {goal}, or call run.steps() without a number."
            raise SessionError(what=what, fix=fix)

    def _prelude(self, due: StepDue) -> Prelude:
        if not due.needs_fingerprints:
            return Prelude(self.progress.step + 1, "", "", None)
        streams = {name: c.capture() for name, c in self.components.items() if name.startswith(RNG_PREFIX)}
        return Prelude(self.progress.step + 1, "", "", streams_fingerprint(streams))

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(optimizer is tracked for tracked in self._optimizers):
            found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._grad_norms.append(total_norm(found))

    def _made(self, prelude: Prelude) -> StepMade:
        if self._reported is None:
            what = f"step {prelude.step} reported nothing."
            raise SessionError(what=what, fix="call run.report(loss=loss) once in each iteration.")
        loss, rates, grad_norm = self._reported
        if rates is None:
            rates = tuple(float(group["lr"]) for each in self._optimizers for group in each.param_groups)
        if grad_norm is None:
            grad_norm = math.hypot(*map(float, self._grad_norms))
        row = WitnessRow(
            **prelude._asdict(),
            loss=loss,
            grad_norm=grad_norm,
            param_norm=float(parameter_norm(self._parameters)) if self._parameters else 0.0,
            lr=rates,
            loss_scale=float(self._scaler.get_scale()) if self._scaler is not None else None,
        )
        # A step counts as one sample: segue does not know the samples of a loop that is not its own.
        return StepMade(row, self.progress.samples_seen, 1, _NONE, 0)


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, torch.Tensor) else value)
