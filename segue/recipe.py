"""A recipe: everything a training run needs, built again in every attempt by one pure function."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from segue.errors import RecipeError
from segue.user_objects import (
    attribute,
    can_be_called,
    has,
    has_parameter,
    in_words,
    is_users_file,
    needed_arguments,
    takes_metric,
    text_of,
)
from segue.user_objects.variables import is_registrable

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
    """The rule by which a metric counts as no longer improving."""

    patience: int
    """Number of evaluations in a row without an improvement after which the run ends."""
    min_delta: float = 0.0
    """Smallest change of the metric that counts as an improvement."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower or a higher metric is better."""


@dataclass
class Recipe:
    """The objects of a training run, as `build(config)` returns them.

    The same config must give the same objects: random weights are fine, because segue seeds every generator before
    it calls `build`. Everything that changes while training must be one of these fields or in `extra`.
    """

    model: nn.Module
    optimizer: Any
    """A `torch.optim.Optimizer`, or a dict of several by name; several optimizers need a `step` that uses them."""
    data: torch.utils.data.DataLoader[Any]
    """Dataset, batch size, collation and workers. segue draws the order itself: shuffled by (seed, epoch) if the loader
    shuffles, otherwise in sequence."""
    loss: Callable[[nn.Module, Any], Any] = None  # type: ignore[assignment]
    """A function of the model and a batch on the model's device; returns a scalar tensor, or a dict of scalar tensors.

    Of a dict, training uses the value `loss`, or the sum of all values if there is no `loss`. The other values go to
    the loss curve."""
    step: Callable[[nn.Module, Any, Any], Any] | None = None
    """A function that makes a whole step, in place of `loss`; its arguments are the model, a batch and `optimizer`.

    The function itself clears the gradients, computes, clips and updates. It returns the same as `loss` would, as
    tensors or numbers. Schedulers are stepped after the function. Such a recipe trains in one process only."""
    accumulate: int = 1
    """Batches per step: the gradient is the mean of their gradients. The last step of an epoch may have fewer."""
    scheduler: Any = None
    """A scheduler, or a dict of several by name; each is stepped once after every step, or after every epoch.

    A scheduler whose `step` needs a metric (`ReduceLROnPlateau`) is stepped with the result of `evaluate` each time
    `evaluate_every` calls `evaluate`."""
    scheduler_every: Literal["step", "epoch"] | None = None
    """The unit that the scheduler counts; if None, steps, with a warning if the scheduler seems to count epochs."""
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """A function that returns the user's metric; it is called in eval mode before every commit.

    It must not change training state."""
    evaluate_every: int | Literal["epoch"] | None = None
    """Number of steps between further calls of `evaluate`, or "epoch" for a call after every epoch.

    The results are in the loss curve as `metric.evaluate`."""
    early_stop: EarlyStop | None = None
    """Ends the run when the metric of `evaluate_every` has not improved for some evaluations."""
    epochs: int | None = None
    """Ends the run after this many epochs, if the run does not reach its goal in steps earlier."""
    clip_grad_norm: float | None = None
    """Largest norm of the gradient, as `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` clips it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further objects with state, such as an EMA, a curriculum or other optimizers.

    Each one has `state_dict` and `load_state_dict`, or is a dict of plain values and tensors, which is restored in
    place, or is a random generator of torch, NumPy or Python."""
    after_step: Callable[..., None] | None = None
    """A function that is called with the global step after each optimizer step, to update objects in `extra`.

    If the function has a parameter `metrics`, it also gets a dict of the step's loss, the parts of the loss and the
    gradient norm."""
    on_epoch: Callable[[int], None] | None = None
    """A function that is called after the last step of each epoch, with the number of the epoch.

    It must not change training state."""
    on_notice: Callable[[Notice], None] | None = None
    """A function that rank 0 calls when a notice ends the attempt, before the last checkpoint, and once for each hint.

    The function runs in a thread of its own. Rank 0 waits at most 5 s for its end, or less if the last checkpoint needs
    the time. If no time is left, the function is not called. Its exceptions are logged. It must not change training
    state."""
    gives_metrics: bool = field(init=False, default=False, repr=False)
    """Whether `after_step` gets the metrics."""
    by_metric: frozenset[str] = field(init=False, default=frozenset(), repr=False)
    """Names of the schedulers whose `step` takes a metric."""

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by the name of its component: `optimizer`, or `optimizer.<name>` if there are several."""
        return _named("optimizer", self.optimizer)

    @property
    def schedulers(self) -> dict[str, Any]:
        """Every scheduler by the name of its component, like `optimizers`; empty if there is none."""
        return {} if self.scheduler is None else _named("scheduler", self.scheduler)

    def __post_init__(self) -> None:
        self.gives_metrics = self.after_step is not None and has_parameter(self.after_step, "metrics")
        self.by_metric = frozenset(name for name, each in self.schedulers.items() if takes_metric(each))


Build = Callable[[dict[str, Any]], Recipe]


def import_build(path: str) -> Build:
    """The function that `package.module:function` names, found from the current folder as `python -m` would.

    Raises:
        RecipeError: there is no such module or function, or the import failed; the message gives the cause and its
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


def built_recipe(build: Build, config: Mapping[str, Any]) -> Recipe:
    """The Recipe that `build` makes from a copy of `config`, after a check that training can use its fields.

    Exceptions of `build` itself are passed on unchanged. Seed the generators before the call.

    Raises:
        RecipeError: `build` takes no config, did not return a Recipe, or a field has a wrong type.
    """
    path = f"{attribute(build, '__module__', '?')}:{attribute(build, '__qualname__', type(build).__name__)}"
    name = path.rpartition(":")[2].rpartition(".")[2]
    if not can_be_called(build, {}):
        why = f"{name} cannot be called with one argument, and segue calls {name}(config)."
        raise RecipeError(recipe=path, why=why, fix=f"Fix: define it as `def {name}(config)`; config is a dict.")
    recipe: object = build(dict(config))
    if not isinstance(recipe, Recipe):
        fix = "Fix: return segue.Recipe(model=..., optimizer=..., data=..., loss=...)."
        raise RecipeError(recipe=path, why=f"{name} returned {in_words(recipe)}, not a segue.Recipe.", fix=fix)
    recipe.__post_init__()  # `build` may have set fields after it made the recipe.
    problems = list(_problems(recipe))
    if problems:
        why = " ".join(f"{field} is {in_words(getattr(recipe, field))}: {what}." for field, what, _ in problems)
        raise RecipeError(recipe=path, why=why, fix="Fix: " + "; ".join(fix for _, _, fix in problems) + ".")
    return recipe


def _problems(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Fields that training cannot use, each with the problem of its value and the fix."""
    from torch import nn
    from torch.utils.data import DataLoader

    if not isinstance(recipe.model, nn.Module):
        yield "model", "not a torch.nn.Module", "model=an instance of your nn.Module"
    yield from _problems_of_optimizers(recipe)
    if not isinstance(recipe.data, DataLoader):
        fix = "data=torch.utils.data.DataLoader(dataset, batch_size=..., shuffle=True)"
        yield "data", "not a torch.utils.data.DataLoader", fix
    for name in ("loss", "step", "evaluate", "after_step", "on_epoch", "on_notice"):
        value, is_optional = getattr(recipe, name), name != "loss" or recipe.step is not None
        if not callable(value) and not (is_optional and value is None):
            yield name, "not a function", f"{name}=the function itself, not what it returns"
    for name, scheduler in recipe.schedulers.items():
        yield from _problems_of_scheduler(name, scheduler, recipe)
    if recipe.step is not None:
        yield from _problems_with_step(recipe)
    yield from _problems_of_numbers(recipe)
    if recipe.scaler is not None and not has(recipe.scaler, "scale", "unscale_", "step", "update", "state_dict"):
        yield "scaler", "not a torch.amp.GradScaler", 'scaler=torch.amp.GradScaler("cuda")'
    clip = recipe.clip_grad_norm
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
        yield "clip_grad_norm", "not a positive number", "clip_grad_norm=1.0, or leave it out"
    if not isinstance(recipe.extra, Mapping):
        yield "extra", "not a dict", 'extra={"ema": ema}'
        return
    for name, value in recipe.extra.items():
        if not isinstance(name, str) or not (is_registrable(value) or has(value, "state_dict", "load_state_dict")):
            what = f"its item {name!r} ({in_words(value)}) has no state_dict and load_state_dict"
            yield "extra", what, f'name the variable that holds it: extra={{{name!r}: segue.Variables(loss, "name")}}'


def _problems_of_optimizers(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    example = "optimizer=torch.optim.AdamW(model.parameters(), lr=...)"
    given = recipe.optimizer
    if isinstance(given, Mapping):
        if not given or not all(isinstance(name, str) and name.isidentifier() for name in given):
            yield "optimizer", "not optimizers by name", 'optimizer={"generator": ..., "critic": ...}'
            return
        if recipe.step is None:
            yield "optimizer", "there is no step that uses them", "step=a function of model, batch and optimizer"
    for name, optimizer in recipe.optimizers.items():
        # Judged by the methods that steps and checkpoints need: some optimizers wrap another one without a base class.
        what = f"{name} is {in_words(optimizer)}, " if isinstance(given, Mapping) else ""
        if not has(optimizer, "zero_grad", "step", "state_dict", "load_state_dict") or not _has_groups(optimizer):
            yield "optimizer", f"{what}not a torch.optim.Optimizer", example
        elif recipe.step is None and (needed := needed_arguments(optimizer.step)):
            what += f"its step needs {_listed(needed)}, and segue calls optimizer.step() itself"
            yield "optimizer", what, _CLOSURE_FIX


def _problems_with_step(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    if recipe.loss is not None:
        yield "loss", "step makes the whole step", "leave out loss or step"
    if _is_count(recipe.accumulate) and recipe.accumulate != 1:
        yield "accumulate", "step makes the whole step", "accumulate in step, over the parts of a larger batch"
    if recipe.clip_grad_norm is not None:
        yield "clip_grad_norm", "step makes the whole step", "clip in step"


def _named(kind: str, given: Any) -> dict[str, Any]:
    return {f"{kind}.{name}": each for name, each in given.items()} if isinstance(given, Mapping) else {kind: given}


def _problems_of_numbers(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    if not _is_count(recipe.accumulate):
        yield "accumulate", "not a number of batches", "accumulate=4, or leave it out"
    if recipe.epochs is not None and not _is_count(recipe.epochs):
        yield "epochs", "not a number of epochs", "epochs=10, or leave it out"
    every = recipe.evaluate_every
    if every is not None and not _is_word(every, "epoch") and not _is_count(every):
        yield "evaluate_every", "neither a number of steps nor 'epoch'", 'evaluate_every=500 or "epoch"'
    if every is not None and recipe.evaluate is None:
        yield "evaluate_every", "there is no evaluate to call", "evaluate=a function that takes the model"
    if recipe.scheduler_every is not None and not _is_word(recipe.scheduler_every, "step", "epoch"):
        yield "scheduler_every", "neither 'step' nor 'epoch'", 'scheduler_every="epoch", or leave it out'
    if recipe.early_stop is not None and not isinstance(recipe.early_stop, EarlyStop):
        yield "early_stop", "not a segue.EarlyStop", "early_stop=segue.EarlyStop(patience=3)"
    elif recipe.early_stop is not None and every is None:
        yield "early_stop", "it needs evaluate_every, which is not set", 'evaluate_every="epoch"'


def _is_word(value: object, *words: str) -> bool:
    # For other types, `==` may raise, or return an array.
    return isinstance(value, str) and value in words


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _problems_of_scheduler(name: str, scheduler: Any, recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    several = isinstance(recipe.scheduler, Mapping)
    which = f"{name} is {in_words(scheduler)}, " if several else ""
    missing = [method for method in ("step", "state_dict", "load_state_dict") if not has(scheduler, method)]
    if missing:
        yield "scheduler", f"{which}without {_listed(missing)}", _SCHEDULER_FIX
        return
    needed = needed_arguments(scheduler.step)
    if name in recipe.by_metric:
        if recipe.evaluate is None or recipe.evaluate_every is None:
            what = f"{which}its step needs {_listed(needed)}, but evaluate or evaluate_every is not set"
            fix = 'evaluate=a function of the model that returns that number, with evaluate_every="epoch" or steps'
            yield "scheduler", what, fix
    elif needed:
        fix = "give a scheduler whose step() needs no argument or only a metric; step other schedulers in after_step "
        what = f"{which}its step needs {_listed(needed)}, and segue calls scheduler.step() after every step"
        yield "scheduler", what, f"{fix}and put them into extra"


_CLOSURE_FIX = (
    "give `step` in place of `loss`: a function of model, batch and optimizer that returns optimizer.step(closure), "
    "where closure() clears the gradients, computes the loss, calls backward() and returns the loss"
)
_SCHEDULER_FIX = (
    "give a torch.optim.lr_scheduler, or an object with step(), state_dict() and load_state_dict(state): state_dict() "
    "returns all that step() changes, as a dict of plain values, and load_state_dict() restores it"
)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _has_groups(optimizer: Any) -> bool:
    return not isinstance(optimizer, type) and isinstance(attribute(optimizer, "param_groups"), (list, tuple))


def users_line(text: str) -> str:
    """File, line and function of the last frame in the user's own code, from the text of a traceback.

    Empty if the text has no frame. If all frames belong to installed packages, the last frame is taken.
    """
    frames = [found.groups() for found in _FRAME.finditer(text) if not found[1].startswith("<")]
    if not frames:
        return ""
    file, line, function = ([frame for frame in frames if is_users_file(frame[0])] or frames)[-1]
    where = f" in {function}" if function and not function.startswith("<") else ""
    return f"{short_path(Path(file))}, line {line}{where}"


_FRAME = re.compile(r'^\s*(?:\|\s*)?File "(.+?)", line (\d+)(?:, in (.+))?$', re.MULTILINE)


def short_path(file: Path) -> Path:
    """The path relative to the current folder, or unchanged if it is outside that folder."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A block in which imports search the current folder, like `python -m`; the folder stays on the path afterwards."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    yield
