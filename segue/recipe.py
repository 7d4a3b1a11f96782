"""Defines a recipe, which contains everything that a training run needs.

One pure function builds the recipe in every attempt.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from segue.errors import RecipeError
from segue.user_objects import (
    attribute,
    has_parameter,
    takes_metric,
    text_of,
)
from segue.user_objects.users_files import current_folder_first, users_line

if TYPE_CHECKING:  # Importing torch takes seconds, and a wrong path can be refused without torch.
    import torch
    from torch import nn

    from segue.records import Notice


@runtime_checkable
class Stateful(Protocol):
    """An object with a state that segue saves and restores, like torch's protocol `Stateful`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class EarlyStop:
    """The rule by which a run ends when a metric no longer improves."""

    patience: int
    """Number of consecutive evaluations without an improvement after which the run ends."""
    min_delta: float = 0.0
    """Smallest change of the metric that counts as an improvement."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower or a higher metric is better."""


@dataclass
class Recipe:
    """The objects of a training run, as `build(config)` returns them.

    Equal configs must give equal objects. Random weights are permitted, because segue seeds every generator before it
    calls `build`. Every object that changes during training must be a field of the recipe or an entry of `extra`.
    """

    model: nn.Module
    optimizer: Any
    """A `torch.optim.Optimizer`, or a dict of several optimizers by name.

    If there are several optimizers, the recipe needs a `step` that uses them.
    """
    data: torch.utils.data.DataLoader[Any]
    """The loader, which defines the data set, batch size, collation and workers.

    segue defines the order of the samples: shuffled by (seed, epoch) if the loader shuffles, and sequential if not.
    """
    loss: Callable[[nn.Module, Any], Any] = None  # type: ignore[assignment]
    """A function of the model and a batch on the model's device.

    The function returns a scalar tensor, or a dict of scalar tensors. If the result is a dict, training uses the value
    `loss` of the dict. If the dict has no `loss`, training uses the sum of all values. The loss curve also shows all
    other values of the dict.
    """
    step: Callable[[nn.Module, Any, Any], Any] | None = None
    """A function that makes a whole training step and replaces `loss`.

    Its arguments are the model, a batch and `optimizer`. The function clears the gradients, computes the loss and the
    gradients, clips the gradients, and updates the weights. The return value is the same as that of `loss`: a tensor, a
    number, or a dict of these. Then segue steps the schedulers. A recipe with a `step` function trains in one process
    only.
    """
    accumulate: int = 1
    """Number of batches per step.

    The gradient of a step is the mean of the gradients of its batches. The last step of an epoch may have fewer batches
    than `accumulate`.
    """
    scheduler: Any = None
    """A scheduler, or a dict of several schedulers by name.

    segue steps each scheduler once after every step, or once after every epoch. If the scheduler's `step` needs a
    metric (`ReduceLROnPlateau`), segue steps it with each result of `evaluate` at the interval `evaluate_every`.
    """
    scheduler_every: Literal["step", "epoch"] | None = None
    """Whether the scheduler counts steps or epochs.

    If the value is None, the scheduler counts steps, and segue warns if the scheduler seems to count epochs.
    """
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """A function that returns the user's metric. segue calls the function in eval mode before every commit.

    The function must not change training state.
    """
    evaluate_every: int | Literal["epoch"] | None = None
    """Number of steps between additional calls of `evaluate`, or "epoch" for a call after every epoch.

    The loss curve shows the results as `metric.evaluate`.
    """
    early_stop: EarlyStop | None = None
    """The rule that ends the run if the metric of `evaluate_every` does not improve for some evaluations."""
    epochs: int | None = None
    """Number of epochs after which the run ends. If the run reaches its goal in steps first, it ends at that step."""
    clip_grad_norm: float | None = None
    """Maximum norm of the gradient.

    segue clips gradients as `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` does.
    """
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other objects with state, such as an EMA, a curriculum or other optimizers.

    Each object has `state_dict` and `load_state_dict`, or is a dict of plain values and tensors (restored in place), or
    is a random generator of torch, NumPy or Python.
    """
    after_step: Callable[..., None] | None = None
    """A function that segue calls with the global step after each optimizer step.

    The function may update the objects in `extra`. If the function has a parameter `metrics`, segue also passes a dict
    of the step's loss, the parts of the loss and the gradient norm.
    """
    on_epoch: Callable[[int], None] | None = None
    """A function that segue calls after the last step of each epoch, with the number of the epoch.

    The function must not change training state.
    """
    on_notice: Callable[[Notice], None] | None = None
    """A function that rank 0 calls when a notice ends the attempt, before the last checkpoint.

    Rank 0 also calls the function once for each hint. The function runs in a separate thread. Rank 0 waits at most 5 s
    for the function. If the last checkpoint needs this time, rank 0 waits less. If no time is left, rank 0 does not
    call the function. segue logs exceptions of the function. The function must not change training state.
    """
    gives_metrics: bool = field(init=False, default=False, repr=False)
    """Whether the function `after_step` has a parameter `metrics`."""
    by_metric: frozenset[str] = field(init=False, default=frozenset(), repr=False)
    """Names of the schedulers whose `step` takes a metric."""

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer, by the name of its component.

        The name is `optimizer`. If there are several optimizers, the names are `optimizer.<name>`.
        """
        return named_by_kind("optimizer", self.optimizer)

    @property
    def schedulers(self) -> dict[str, Any]:
        """Every scheduler, by the name of its component.

        The name is `scheduler`. If there are several schedulers, the names are `scheduler.<name>`.
        """
        return {} if self.scheduler is None else named_by_kind("scheduler", self.scheduler)

    def __post_init__(self) -> None:
        self.gives_metrics = self.after_step is not None and has_parameter(self.after_step, "metrics")
        self.by_metric = frozenset(name for name, each in self.schedulers.items() if takes_metric(each))


Build = Callable[[dict[str, Any]], Recipe]


def named_by_kind(kind: str, given: Any) -> dict[str, Any]:
    return {f"{kind}.{name}": each for name, each in given.items()} if isinstance(given, Mapping) else {kind: given}


def import_build(path: str) -> Build:
    """Import the function that `package.module:function` names.

    The import searches the current folder, as `python -m` does.

    Raises:
        RecipeError: the module or function does not exist, or the import failed. The message gives the cause and the
        line.
    """
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name:
        raise RecipeError(recipe=path, why="is not of the form package.module:function.", fix=RecipeError.PATH_FIX)
    with current_folder_first():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                why = f"there is no module {error.name!r}."
                raise RecipeError(recipe=path, why=why, fix=RecipeError.PATH_FIX) from None
            why = f"importing it needs {error.name!r}, which is not installed."
            raise RecipeError(recipe=path, why=why, fix=f"install {error.name}.") from None
        except (Exception, SystemExit) as error:
            # The import runs the user's module, which may raise any exception; the command reports all in the same way.
            place = users_line("".join(traceback.format_exception(error)))
            why = f"importing it{f' ({place})' if place else ''} raised {type(error).__name__}: {text_of(error)}."
            raise RecipeError(recipe=path, why=why, fix="correct the module.") from error
    build = attribute(module, function_name)
    if not callable(build):
        why = f"module {module_name!r} has no function {function_name!r}."
        raise RecipeError(recipe=path, why=why, fix=RecipeError.PATH_FIX)
    return build  # type: ignore[no-any-return]
