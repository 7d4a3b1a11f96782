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
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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


@dataclass
class Recipe:
    """What `build(config)` returns.

    The same config must give the same objects: random weights are fine, for segue seeds every generator before it
    calls `build`. Everything that changes while training must be one of these fields or in `extra`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: torch.utils.data.DataLoader[Any]
    """Dataset, batch size, collation and workers. segue draws the order itself: shuffled by (seed, epoch) if the
    loader shuffles, in sequence if not."""
    loss: Callable[[nn.Module, Any], torch.Tensor]
    """Called with the model and a batch on the model's device; returns a scalar tensor."""
    scheduler: Any = None
    """Stepped once after every optimizer step."""
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """The user's metric, called in eval mode before every commit; must not touch training state."""
    clip_grad_norm: float | None = None
    """Largest norm of the gradient, as `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` clips it."""
    extra: Mapping[str, Stateful] = field(default_factory=dict)
    """EMA, curriculum, further optimizers: anything with `state_dict` and `load_state_dict`."""
    after_step: Callable[[int], None] | None = None
    """Called with the global step after each optimizer step, to update what is in `extra`."""
    on_notice: Callable[[Notice], None] | None = None
    """Called on rank 0 when a notice ends the attempt, before the last checkpoint, and once for each hint. It runs in a
    thread of its own and is waited for at most 5 s, less where the last checkpoint needs the time; not called where no
    time is left. What it raises is logged. It must not touch training state."""


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
    # By what a step calls and a checkpoint needs: some optimizers wrap another one and inherit from nothing.
    if not _has(recipe.optimizer, "param_groups", "zero_grad", "step", "state_dict", "load_state_dict"):
        yield "optimizer", "not a torch.optim.Optimizer", "optimizer=torch.optim.AdamW(model.parameters(), lr=...)"
    if not isinstance(recipe.data, DataLoader):
        fix = "data=torch.utils.data.DataLoader(dataset, batch_size=..., shuffle=True)"
        yield "data", "not a torch.utils.data.DataLoader", fix
    for name in ("loss", "evaluate", "after_step", "on_notice"):
        value, is_optional = getattr(recipe, name), name != "loss"
        if not callable(value) and not (is_optional and value is None):
            yield name, "not a function", f"{name}=the function itself, not what it returns"
    yield from _problems_of_scheduler(recipe.scheduler)
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
    return (paths["purelib"], paths["platlib"], paths["stdlib"], *site.getsitepackages())


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
