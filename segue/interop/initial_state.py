"""Makes the initial state of a run: imported weights, and all other state as the recipe builds it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segue.data.config import config_with_data
from segue.data.loader import Feed
from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.interop.first_checkpoint import FirstCheckpoint
from segue.interop.weights_file import Fit, fit_into, read_weights
from segue.recipe import Build, Recipe, import_build
from segue.recipe_check import built_recipe
from segue.records import WeightsFile
from segue.spec import RunSpec
from segue.trainer.process.environment import environment_of, prepare_device
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import capture, components_of
from segue.user_objects import text_of
from segue.user_objects.users_files import users_line

_ACCELERATOR_STREAMS = "rng.cuda"


@dataclass(frozen=True)
class FirstState:
    """A first checkpoint with imported weights, and the result of loading these weights into the model."""

    first: FirstCheckpoint
    """The first checkpoint. Its tensors are the live tensors of the recipe."""
    file: WeightsFile
    fit: Fit
    notes: tuple[str, ...]


def first_state(spec: RunSpec, path: Path, *, step: int, partial: bool, progress: Callable[[str], None]) -> FirstState:
    """Build the recipe as a run's first attempt does, and load the weights from `path` into the model.

    The function builds the recipe on the CPU, because the state is the same on every device.

    Raises:
        WeightsFileError, WeightsMismatchError: the file does not have the model's weights.
        RecipeError: the recipe cannot be built.
    """
    device = prepare_device(spec.model_copy(update={"device": "cpu"}))
    build = import_build(spec.recipe_path)
    progress("reading the weights")
    weights = read_weights(path)
    progress("building the recipe")
    seed_all(spec.seed)
    recipe = built(build, spec)
    order = Feed(recipe.data, recipe=spec.recipe_path, seed=spec.seed).order
    position = Progress(step=step, samples_seen=order.position_after(step))
    components = components_of(recipe, position, name=spec.recipe_path)
    # A resume restores the modes from the checkpoint, so they must be those of a first attempt.
    recipe.model.train()
    fit = fit_into(recipe.model, weights, path=path, partial=partial)
    trees = capture(components)
    # The machine that trains seeds the streams of its accelerators; this machine may have no accelerator.
    trees.pop(_ACCELERATOR_STREAMS, None)
    first = FirstCheckpoint(
        spec=spec,
        origin=weights.file,
        step=step,
        samples_seen=position.samples_seen,
        epoch=order.epoch_of(position.samples_seen),
        environment=environment_of(device, is_deterministic=spec.deterministic),
        trees=trees,
    )
    return FirstState(first, weights.file, fit, tuple(_notes(recipe, fit)))


def built(build: Build, spec: RunSpec) -> Recipe:
    """Build the recipe.

    Raises:
        RecipeError: the recipe cannot be built. The error names the line of the user's code.
        DataChangedError, DataUnreadableError: a file of the run's data has changed, or could not be read.
    """
    config = config_with_data(spec)
    try:
        return built_recipe(build, config)
    except RecipeError:
        raise
    except Exception as error:
        place = users_line("".join(traceback.format_exception(error)))
        why = f"building it{f' ({place})' if place else ''} raised {type(error).__name__}: {text_of(error)}."
        raise RecipeError(recipe=spec.recipe_path, why=why, fix="correct it, then try again.") from error


def _notes(recipe: Recipe, fit: Fit) -> list[str]:
    notes = []
    if fit.prefix:
        notes.append(f"the prefix {fit.prefix!r} was removed from every name in the file")
    if fit.kept_as_built:
        kept = ", ".join(fit.kept_as_built)
        notes.append(f"the recipe's initial values are used for weights that the file does not contain: {kept}")
    if fit.converted:
        notes.append(f"converted to the model's element type: {', '.join(fit.converted)}")
    if recipe.extra:
        kept = ", ".join(f"extra.{name}" for name in recipe.extra)
        notes.append(f"built by the recipe from the model before the import: {kept}")
    if recipe.scaler is not None and not recipe.scaler.is_enabled():
        notes.append("the scaler is off on this machine; if it is on where the run trains, import the weights there")
    return notes
