"""A recipe: everything a training run needs, built again in every attempt by one pure function."""

from __future__ import annotations

import importlib
import inspect
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from segue.errors import RecipeError

if TYPE_CHECKING:  # Torch takes seconds to import, and a wrong path can be refused without it.
    import torch
    from torch import nn

    from segue.records import Notice


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state must come back: the torch protocol of the same two methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class EarlyStop:
    """When a metric counts as no longer getting better."""

    patience: int
    """Evaluations in a row without a better metric after which the run ends."""
    min_delta: float = 0.0
    """By how much a metric has to be better."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower or a higher metric is better."""


@dataclass
class Recipe:
    """What `build(config)` returns.

    The same config must give the same objects: random weights are fine, for segue seeds every generator before it
    calls `build`. Everything that changes while training must be one of these fields or in `extra`.
    """

    model: nn.Module
    optimizer: Any
    """A `torch.optim.Optimizer`, or several by name, which need a `step` that uses them."""
    data: torch.utils.data.DataLoader[Any]
    """Dataset, batch size, collation and workers. segue draws the order itself: shuffled by (seed, epoch) if the
    loader shuffles, in sequence if not."""
    loss: Callable[[nn.Module, Any], Any] = None  # type: ignore[assignment]
    """Called with the model and a batch on the model's device; returns a scalar tensor, or a dict of them.

    Of a dict, `loss` is trained on, or the sum of all where there is no `loss`; the others go to the loss curve."""
    step: Callable[[nn.Module, Any, Any], Any] | None = None
    """Makes a whole step itself, in place of `loss`: called with the model, a batch and `optimizer` as given here.

    It clears gradients, computes, clips and updates as it likes, and returns what `loss` would return, as tensors or
    numbers. Schedulers are stepped after it. In one process only."""
    accumulate: int = 1
    """Batches that make one step: the gradient is the mean of theirs. The last step of an epoch may have fewer."""
    scheduler: Any = None
    """Stepped once after every step, or after every epoch; several by name are all stepped."""
    scheduler_every: Literal["step", "epoch"] | None = None
    """What the scheduler counts; None: steps, with a warning where it looks as if it were meant to count epochs."""
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """The user's metric, called in eval mode before every commit; must not touch training state."""
    evaluate_every: int | Literal["epoch"] | None = None
    """Call it also after every so many steps, or after every epoch; results are in the curve as `metric.evaluate`."""
    early_stop: EarlyStop | None = None
    """Ends the run when the metric of `evaluate_every` has not become better for some time."""
    epochs: int | None = None
    """Ends the run after so many passes over the data, if its goal in steps is not reached before."""
    clip_grad_norm: float | None = None
    """Largest norm of the gradient, as `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` clips it."""
    extra: Mapping[str, Stateful] = field(default_factory=dict)
    """EMA, curriculum, further optimizers: anything with `state_dict` and `load_state_dict`."""
    after_step: Callable[..., None] | None = None
    """Called with the global step after each optimizer step, to update what is in `extra`; with `metrics=`, a dict of
    the step's loss, its parts and the gradient norm, if it has a parameter of that name."""
    on_epoch: Callable[[int], None] | None = None
    """Called with the number of each epoch that is done, after its last step; must not touch training state."""
    on_notice: Callable[[Notice], None] | None = None
    """Called on rank 0 when a notice ends the attempt, before the last checkpoint, and once for each hint. It runs in a
    thread of its own and is waited for at most 5 s, less where the last checkpoint needs the time; not called where no
    time is left. What it raises is logged. It must not touch training state."""
    gives_metrics: bool = field(init=False, default=False, repr=False)
    """Whether `after_step` gets the metrics."""

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by the name of its component: `optimizer`, or `optimizer.<name>` where there are several."""
        return _named("optimizer", self.optimizer)

    @property
    def schedulers(self) -> dict[str, Any]:
        """Every scheduler by the name of its component, like `optimizers`; empty where there is none."""
        return {} if self.scheduler is None else _named("scheduler", self.scheduler)

    def __post_init__(self) -> None:
        self.gives_metrics = self.after_step is not None and _has_parameter(self.after_step, "metrics")


Build = Callable[[dict[str, Any]], Recipe]


def import_build(path: str) -> Build:
    """The function that `package.module:function` names, found from the current folder as `python -m` would.

    Raises:
        RecipeError: no such module, no such function, or the import itself failed; names which, and where.
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
            # Importing runs the user's module, which may raise anything; for the command it is one condition.
            place = users_line("".join(traceback.format_exception(error)))
            why = f"importing it{f' ({place})' if place else ''} raised {type(error).__name__}: {error}."
            raise RecipeError(recipe=path, why=why, fix="correct the module.") from error
    build = getattr(module, function_name, None)
    if not callable(build):
        why = f"module {module_name!r} has no function {function_name!r}."
        raise RecipeError(recipe=path, why=why, fix=RecipeError.PATH_FIX)
    return build  # type: ignore[no-any-return]


def built_recipe(build: Build, config: Mapping[str, Any]) -> Recipe:
    """What `build` makes of a copy of `config`, checked: a Recipe whose fields can be trained with.

    What `build` itself raises comes through as it is. Seed the generators before.

    Raises:
        RecipeError: `build` takes no config, did not return a Recipe, or a field has a wrong type.
    """
    path = f"{getattr(build, '__module__', '?')}:{getattr(build, '__qualname__', repr(build))}"
    name = path.rpartition(":")[2].rpartition(".")[2]
    if not _can_be_called(build, {}):
        why = f"{name} cannot be called with one argument, and segue calls {name}(config)."
        raise RecipeError(recipe=path, why=why, fix=f"Fix: define it as `def {name}(config)`; config is a dict.")
    recipe: object = build(dict(config))
    if not isinstance(recipe, Recipe):
        fix = "Fix: return segue.Recipe(model=..., optimizer=..., data=..., loss=...)."
        raise RecipeError(recipe=path, why=f"{name} returned {in_words(recipe)}, not a segue.Recipe.", fix=fix)
    problems = list(_problems(recipe))
    if problems:
        why = " ".join(f"{field} is {in_words(getattr(recipe, field))}: {what}." for field, what, _ in problems)
        raise RecipeError(recipe=path, why=why, fix="Fix: " + "; ".join(fix for _, _, fix in problems) + ".")
    return recipe


def _problems(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Fields that cannot be trained with: the field, what is wrong with its value, and the fix."""
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
    for scheduler in recipe.schedulers.values():
        yield from _problems_of_scheduler(scheduler)
    if recipe.step is not None:
        yield from _problems_with_step(recipe)
    yield from _problems_of_numbers(recipe)
    if recipe.scaler is not None and not _has(recipe.scaler, "scale", "unscale_", "step", "update", "state_dict"):
        yield "scaler", "not a torch.amp.GradScaler", 'scaler=torch.amp.GradScaler("cuda")'
    clip = recipe.clip_grad_norm
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
        yield "clip_grad_norm", "not a positive number", "clip_grad_norm=1.0, or leave it out"
    if not isinstance(recipe.extra, Mapping):
        yield "extra", "not a dict", 'extra={"ema": ema}'
        return
    for name, value in recipe.extra.items():
        if not isinstance(name, str) or isinstance(value, type) or not isinstance(value, Stateful):
            what = f"its item {name!r} ({in_words(value)}) has no state_dict and load_state_dict"
            yield "extra", what, f"give what extra[{name!r}] holds these two methods"


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
        # By what a step calls and a checkpoint needs: some optimizers wrap another one and inherit from nothing.
        if not _has(optimizer, "param_groups", "zero_grad", "step", "state_dict", "load_state_dict"):
            what = f"{name} is {in_words(optimizer)}, " if isinstance(given, Mapping) else ""
            yield "optimizer", f"{what}not a torch.optim.Optimizer", example


def _problems_with_step(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    if recipe.loss is not None:
        yield "loss", "step makes the whole step", "leave out loss or step"
    if recipe.accumulate != 1:
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
    if every is not None and every != "epoch" and not _is_count(every):
        yield "evaluate_every", "neither a number of steps nor 'epoch'", 'evaluate_every=500 or "epoch"'
    if every is not None and recipe.evaluate is None:
        yield "evaluate_every", "there is no evaluate to call", "evaluate=a function that takes the model"
    if recipe.scheduler_every not in (None, "step", "epoch"):
        yield "scheduler_every", "neither 'step' nor 'epoch'", 'scheduler_every="epoch", or leave it out'
    if recipe.early_stop is not None and not isinstance(recipe.early_stop, EarlyStop):
        yield "early_stop", "not a segue.EarlyStop", "early_stop=segue.EarlyStop(patience=3)"
    elif recipe.early_stop is not None and every is None:
        yield "early_stop", "there is no evaluate_every that it could follow", 'evaluate_every="epoch"'


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _problems_of_scheduler(scheduler: Any) -> Iterator[tuple[str, str, str]]:
    if scheduler is None:
        return
    if not _has(scheduler, "step", "state_dict", "load_state_dict"):
        fix = "scheduler=a torch.optim.lr_scheduler, or an object with step, state_dict and load_state_dict"
        yield "scheduler", "without step, state_dict or load_state_dict", fix
    elif not _can_be_called(scheduler.step):
        fix = "scheduler=one whose step() takes no metric; step others in after_step and put them into extra"
        yield "scheduler", "its step needs an argument, and segue calls scheduler.step() after every step", fix


def _has(value: object, *names: str) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # Not a function, which is refused elsewhere, or built in without a signature.


def _can_be_called(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True  # Built in, without a signature.
    return True


def in_words(value: object) -> str:
    """What a value is, for an error: None, a class, or one of a class."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def users_line(text: str) -> str:
    """File, line and function of the last frame in the user's own code, from the text of a traceback.

    Empty when the text has no frame. Where all frames are of installed packages, the last of them.
    """
    frames = [found.groups() for found in _FRAME.finditer(text) if not found[1].startswith("<")]
    if not frames:
        return ""
    file, line, function = ([frame for frame in frames if is_users_file(frame[0])] or frames)[-1]
    where = f" in {function}" if function and not function.startswith("<") else ""
    return f"{short_path(Path(file))}, line {line}{where}"


_FRAME = re.compile(r'^\s*(?:\|\s*)?File "(.+?)", line (\d+)(?:, in (.+))?$', re.MULTILINE)


def is_users_file(file: str) -> bool:
    """Whether a source file is neither installed, nor Python's, nor segue's."""
    here = Path(__file__).parent
    path = Path(file)
    if path.is_relative_to(here) and not path.is_relative_to(here / "testing"):
        return False
    return not any(path.is_relative_to(folder) for folder in installed_folders())


def installed_folders() -> tuple[str, ...]:
    """Folders of Python's own modules and of installed packages."""
    paths = sysconfig.get_paths()
    return (paths["purelib"], paths["platlib"], paths["stdlib"], *site.getsitepackages(), site.getusersitepackages())


def short_path(file: Path) -> Path:
    """The path as a person in the current folder would write it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A block in which imports look into the current folder, as `python -m` does; it stays on the path afterwards."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    yield
