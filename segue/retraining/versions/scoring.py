"""Computes the scores of a version with the user's functions, on rows outside the version's training data.

The module needs torch.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from segue.errors import PublishError, RecipeError, ScoresError, SpecError
from segue.recipe import import_build
from segue.retraining.evaluation import Scores, checked_scores
from segue.retraining.model_record import Candidate
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.version_files import get_artifact, program_of, state_of
from segue.stores.base import Store
from segue.user_objects import can_be_called
from segue.user_objects.users_files import users_line

if TYPE_CHECKING:
    import pandas as pd

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def built_model(function: str, config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    """Return the user's model with these weights, for evaluation.

    Raises:
        RecipeError: the user's function does not exist.
        PublishError: the function raised an exception, did not return a module, or returned a model that does not fit
            the weights.
    """
    # The function is imported in the same way as the function of a recipe.
    model = called(import_build(function), dict(config), name=function)
    if not isinstance(model, nn.Module):
        raise PublishError(what=function, why=f"it returned a {type(model).__name__}, not a torch.nn.Module")
    try:
        model.load_state_dict(dict(state))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise PublishError(what=function, why=f"the weights do not fit its model: {' '.join(lines)}") from None
    return model.eval()


def require_functions(spec: RetrainSpec) -> None:
    """Check that the functions for publishing and evaluation exist and take their arguments, without calling them.

    Raises:
        SpecError: a function is missing, cannot be imported, or takes other arguments. The error names each field.
    """
    scores = spec.evaluation.scores if spec.evaluation is not None else None
    wanted: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "publish.model": (spec.publish.model, ("config",)),
        "publish.example": (spec.publish.example, ()),
        "evaluation.scores": (scores, ("model", "frame")),
    }
    problems = [
        f"{field}: {why}"
        for field, (function, arguments) in wanted.items()
        if function is not None and (why := _why_unfit(function, arguments)) is not None
    ]
    if problems:
        raise SpecError(source="retrain.toml", problems=tuple(problems))


def _why_unfit(function: str, arguments: Sequence[str]) -> str | None:
    try:
        found = import_build(function)
    except RecipeError as error:
        return f"{function}: {error.why.rstrip('.')}"
    if can_be_called(found, *arguments):
        return None
    name = function.rpartition(":")[2]
    return f"{function} cannot be called as {name}({', '.join(arguments)})"


def called(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Call the user's function and return its result.

    Raises:
        PublishError: the function raised an exception. The error names the line of code.
    """
    try:
        return function(*arguments)
    except Exception as error:
        place = users_line("".join(traceback.format_exception(error)))
        why = f"it raised {type(error).__name__}: {error}{f' ({place})' if place else ''}"
        raise PublishError(what=name, why=why) from error


def published_model(function: str, version: Candidate, store: Store) -> Callable[..., Any]:
    """Return a version's model in its published form.

    If the version has a program, changes of the user's code do not affect the model.

    Raises:
        DamagedVersionError: the version's file is damaged.
        PublishError, RecipeError: the user's function gives no model for the version's weights.
        StoreReadError: the store could not be read.
    """
    if version.program is not None:
        module: nn.Module = program_of(get_artifact(store, version.program)).module()
        return module
    return built_model(function, version.config, state_of(get_artifact(store, version.weights)))


def scores_of(
    function: str, model: Callable[..., Any], frame: pd.DataFrame, *, place_of: Callable[[int], str] = str
) -> Scores:
    """Return a number for each row, for each metric of the user's function. `place_of` gives the file and number of a
    row.

    Raises:
        ScoresError: the function does not exist, raised an exception, or did not return scores.
    """
    try:
        score = import_build(function)
    except RecipeError as error:
        raise ScoresError(function=function, why=str(error)) from None
    if not inspect.isroutine(score) and not callable(score):
        raise ScoresError(function=function, why="it is not a function")
    try:
        with torch.no_grad():
            scores: Any = score(model, frame)  # type: ignore[call-arg, arg-type]
    except Exception as error:
        place = users_line("".join(traceback.format_exception(error)))
        why = f"it raised {type(error).__name__}: {error}{f' ({place})' if place else ''}"
        raise ScoresError(function=function, why=why) from error
    return checked_scores(scores, rows=len(frame), function=function, place_of=place_of)


@dataclass
class NanPredictions:
    """Number of rows with nan in a model's outputs. A score can be finite although outputs are nan, because the argmax
    of nan is a number."""

    rows: int = 0

    def count(self, _model: nn.Module, _arguments: tuple[Any, ...], output: object) -> None:
        """Count the rows of one output. This method is a forward hook of the model."""
        self.rows += max((_nan_rows(leaf) for leaf in tree_leaves(output)), default=0)


@contextmanager
def nan_predictions(model: Callable[..., Any]) -> Iterator[NanPredictions]:
    """Count the output rows of the model that contain nan, until the block ends."""
    found = NanPredictions()
    hook = model.register_forward_hook(found.count) if isinstance(model, nn.Module) else None
    try:
        yield found
    finally:
        if hook is not None:
            hook.remove()


def nan_weights(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tensors of a state dict that contain nan."""
    return tuple(name for name, each in state.items() if _nan_rows(each))


def _nan_rows(value: object) -> int:
    """Return the number of rows with nan in a tensor. If the value is not a dense tensor of floats, return 0."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS or value.layout is not torch.strided:
        return 0
    if value.is_nested or not value.numel():
        return 0
    rows = value.isnan()
    return int((rows.flatten(1).any(1) if rows.dim() > 1 else rows).sum())
