"""A recipe contains everything that a training run needs.

One pure function builds the recipe again in every attempt.
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
    """An object whose state is saved and restored, with the same methods as torch's protocol `Stateful`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class EarlyStop:
    """The rule that decides when a metric no longer improves."""

    patience: int
    """Number of consecutive evaluations without an improvement after which the run ends."""
    min_delta: float = 0.0
    """Smallest change of the metric that counts as an improvement."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower or a higher metric is better."""


@dataclass
class Recipe:
    """The objects of a training run, as `build(config)` returns them.

    The same config must give the same objects. Random weights are permitted, because segue seeds every generator before
    it calls `build`. Every object that changes during training must be a field of the recipe or an entry of `extra`.
    """

    model: nn.Module
    optimizer: Any
    """A `torch.optim.Optimizer`, or a dict of several optimizers by name.

    If there are several optimizers, the recipe needs a `step` that uses them.
    """
    data: torch.utils.data.DataLoader[Any]
    """The loader gives the data set, batch size, collation and workers.

    The order of the samples comes from segue: shuffled by (seed, epoch) if the loader shuffles, otherwise in sequence.
    """
    loss: Callable[[nn.Module, Any], Any] = None  # type: ignore[assignment]
    """A function of the model and a batch on the model's device.

    The function returns a scalar tensor, or a dict of scalar tensors.

    If the function returns a dict, training uses the value `loss` of the dict, or the sum of all values if there is no
    `loss`. All other values of the dict are added to the loss curve.
    """
    step: Callable[[nn.Module, Any, Any], Any] | None = None
    """A function that makes a whole training step.

    It replaces `loss`. Its arguments are the model, a batch and `optimizer`.

    The function `step` itself clears the gradients, computes the loss and the gradients, clips the gradients, and
    updates the weights. The function `step` returns what `loss` would return, as tensors or numbers. After the function
    `step` returns, segue steps the schedulers. A recipe with a `step` function trains in one process only.
    """
    accumulate: int = 1
    """Number of batches per step.

    The gradient of a step is the mean of the gradients of its batches. The last step of an epoch may have fewer batches
    than `accumulate`.
    """
    scheduler: Any = None
    """A scheduler, or a dict of several schedulers by name.

    Each scheduler is stepped once after every step, or once after every epoch.

    A scheduler whose `step` needs a metric (`ReduceLROnPlateau`) is stepped with the result of `evaluate` each time
    `evaluate_every` calls `evaluate`.
    """
    scheduler_every: Literal["step", "epoch"] | None = None
    """The unit that the scheduler counts.

    If the value is None, the scheduler counts steps, and segue warns if the scheduler seems to count epochs.
    """
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """A function that returns the user's metric. Segue calls the function in eval mode before every commit.

    The function `evaluate` must not change training state.
    """
    evaluate_every: int | Literal["epoch"] | None = None
    """Number of steps between further calls of `evaluate`, or "epoch" for a call after every epoch.

    The loss curve shows the results as `metric.evaluate`.
    """
    early_stop: EarlyStop | None = None
    """The rule that ends the run when the metric of `evaluate_every` has not improved for some evaluations."""
    epochs: int | None = None
    """Number of epochs after which the run ends, if the run does not reach its goal in steps earlier."""
    clip_grad_norm: float | None = None
    """Maximum norm of the gradient.

    Gradients are clipped as by `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)`.
    """
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further objects with state, such as an EMA, a curriculum or other optimizers.

    Each object has `state_dict` and `load_state_dict`, or is a dict of plain values and tensors (restored in place), or
    is a random generator of torch, NumPy or Python.
    """
    after_step: Callable[..., None] | None = None
    """A function that is called with the global step after each optimizer step.

    The function may update the objects in `extra`.

    If the function has a parameter `metrics`, it also gets a dict of the step's loss, the parts of the loss and the
    gradient norm.
    """
    on_epoch: Callable[[int], None] | None = None
    """A function that is called after the last step of each epoch, with the number of the epoch.

    The function `on_epoch` must not change training state.
    """
    on_notice: Callable[[Notice], None] | None = None
    """A function that rank 0 calls when a notice ends the attempt, before the last checkpoint.

    Rank 0 also calls the function once for each hint.

    The function `on_notice` runs in a thread of its own. Rank 0 waits at most 5 s for the end of the function, or less
    if the last checkpoint needs the time. If no time is left, the function is not called. Exceptions of the function
    `on_notice` are logged. The function `on_notice` must not change training state.
    """
    gives_metrics: bool = field(init=False, default=False, repr=False)
    """Whether the function `after_step` has a parameter `metrics`, for the metrics of the step."""
    by_metric: frozenset[str] = field(init=False, default=frozenset(), repr=False)
    """Names of the schedulers whose `step` takes a metric."""

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by the name of its component.

        The name is `optimizer`, or `optimizer.<name>` if there are several optimizers.
        """
        return named_by_kind("optimizer", self.optimizer)

    @property
    def schedulers(self) -> dict[str, Any]:
        """Every scheduler by the name of its component.

        The names have the same form as for `optimizers`. The dict is empty if there is no scheduler.
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
        RecipeError: the module or function does not exist, or the import failed. The message gives the cause and its
            place.
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
