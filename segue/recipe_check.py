"""Builds a recipe with the user's function, and checks its fields before training begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from segue.errors import RecipeError
from segue.user_objects import (
    attribute,
    can_be_called,
    has,
    in_words,
    needed_arguments,
)
from segue.user_objects.variables import is_registrable

if TYPE_CHECKING:  # Importing torch takes seconds, and a wrong path can be refused without torch.
    pass


from segue.recipe import Build, EarlyStop, Recipe


def built_recipe(build: Build, config: Mapping[str, Any]) -> Recipe:
    """Return the Recipe that `build` makes from a copy of `config`, after a check of its fields.

    The function does not catch exceptions of `build`. The caller must seed the random generators before the call.

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
    """Yield the fields that training cannot use, each with the problem and the fix."""
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
