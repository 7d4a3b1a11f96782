"""A recipe: everything a training run needs, built afresh in every segment by one pure function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from segue.errors import RecipeError

if TYPE_CHECKING:  # Torch takes seconds to import, and a path that is wrong can be told without it.
    import torch
    from torch import nn


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
    """Called with the model and a batch on the model's device; returns a scalar."""
    scheduler: Any = None
    """Stepped once after every optimizer step."""
    scaler: torch.amp.GradScaler | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    """The user's metric, called in eval mode before every commit; must not touch training state."""
    clip_grad_norm: float | None = None
    extra: Mapping[str, Stateful] = field(default_factory=dict)
    """EMA, curriculum, further optimizers: anything with `state_dict` and `load_state_dict`."""
    after_step: Callable[[int], None] | None = None
    """Called with the global step after each optimizer step, to update what is in `extra`."""


Build = Callable[[dict[str, Any]], Recipe]


def import_build(path: str) -> Build:
    """The function that `package.module:function` names, found from the current folder as `python -m` would.

    Raises:
        RecipeError: no such module, no such function, or the import itself failed; says which.
    """
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name:
        raise RecipeError(recipe=path, why="is not of the form package.module:function.")
    with _current_folder_first():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                raise RecipeError(recipe=path, why=f"there is no module {error.name!r}.") from None
            raise RecipeError(recipe=path, why=f"importing it needs {error.name!r}, which is not installed.") from None
        except (Exception, SystemExit) as error:
            # Importing runs the user's module, which may raise anything; all of it is the same news here.
            why = f"importing it raised {type(error).__name__}: {error}."
            raise RecipeError(recipe=path, why=why) from error
    build = getattr(module, function_name, None)
    if not callable(build):
        raise RecipeError(recipe=path, why=f"module {module_name!r} has no function {function_name!r}.")
    return build  # type: ignore[no-any-return]


@contextmanager
def _current_folder_first() -> Iterator[None]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    yield
