"""Writes a run's newest weights as an MLflow model with a signature, in a process with torch and the recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.data.config import config_with_data
from segue.errors import SegueError
from segue.interop.export import ExportFormat, write_export
from segue.interop.load import choose_checkpoint, load_checkpoint
from segue.recipe import Recipe, import_build
from segue.recipe_check import built_recipe
from segue.runlog.history import Checkpoint
from segue.runlog.log import RunLog
from segue.runlog.open import find_run
from segue.spec import RunSpec, StoreSpec


def save_model(run_id: str, store: StoreSpec, folder: Path) -> str:
    """Write the newest checkpoint's model into a new folder. Return a text that describes the files.

    If the recipe's model takes only tensors by position, the result is an MLflow model of `torch.export`, which loads
    without the recipe's code. For other runs, the function writes the weights as safetensors, with a README that
    explains how to load them.

    Raises:
        NoCheckpointError: the run has no checkpoint.
        StoreReadError: the store could not be read.
    """
    runlog, history = find_run(run_id, store)
    checkpoint = choose_checkpoint(history, run_id=run_id, step=None, take_quarantined=False)
    spec = history.spec
    if spec is None or spec.recipe is None:
        return _weights(runlog, checkpoint, folder, why="the run trains a program")
    recipe = _trained(spec, store)
    if recipe.step is not None:
        return _weights(runlog, checkpoint, folder, why="the recipe makes its steps itself")
    inputs = _inputs_of(recipe)
    if inputs is None:
        return _weights(runlog, checkpoint, folder, why="its model does not take tensors by position")
    try:
        _save_exported(recipe.model, inputs, folder)
    except Exception as error:  # torch.export raises many types.
        return _weights(runlog, checkpoint, folder, why=f"torch.export raised {type(error).__name__}")
    return "MLflow model"


def _weights(runlog: RunLog, checkpoint: Checkpoint, folder: Path, *, why: str) -> str:
    write_export(runlog, checkpoint, file_format=ExportFormat.SAFETENSORS, folder=folder)
    return f"weights as safetensors, because {why}"


def _trained(spec: RunSpec, store: StoreSpec) -> Recipe:
    config = config_with_data(spec)
    torch.manual_seed(spec.seed)
    recipe = built_recipe(import_build(spec.recipe_path), config)
    state = load_checkpoint(spec.run_id, store=store)
    recipe.model.load_state_dict(state["model"])
    recipe.model.eval()
    return recipe


def _inputs_of(recipe: Recipe) -> tuple[torch.Tensor, ...] | None:
    """Return the arguments that the recipe passes to the model for a first batch.

    If an argument is passed by name or is not a tensor, return None.
    """
    batch = next(iter(recipe.data))
    with _first_call(recipe.model) as call, torch.no_grad():
        recipe.loss(recipe.model, batch)
    arguments, named = call.get("inputs", ((), {}))
    if named or not arguments or not all(isinstance(each, torch.Tensor) for each in arguments):
        return None
    return tuple(arguments)


@contextmanager
def _first_call(model: nn.Module) -> Iterator[dict[str, Any]]:
    call: dict[str, Any] = {}

    def note(module: nn.Module, arguments: Any, named: Any) -> None:
        call.setdefault("inputs", (arguments, named))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()


def _save_exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> None:
    import mlflow.pytorch
    from mlflow.models import infer_signature

    with torch.no_grad():
        output = model(*inputs)
    arrays = [each.numpy() for each in inputs]
    given = arrays[0] if len(arrays) == 1 else {f"input_{number}": array for number, array in enumerate(arrays)}
    signature = infer_signature(given, output.numpy() if isinstance(output, torch.Tensor) else None)
    mlflow.pytorch.save_model(
        model,
        str(folder),
        signature=signature,
        input_example=arrays[0] if len(arrays) == 1 else None,
        serialization_format="pt2",
        pip_requirements=[f"torch=={version('torch').partition('+')[0]}", f"mlflow=={version('mlflow-skinny')}"],
    )


def main() -> None:
    """Run the process.

    The arguments are the run, the store as JSON, the folder of the model, and the file for the description.
    """
    run_id, store, folder, said = sys.argv[1:]
    try:
        Path(said).write_text(save_model(run_id, StoreSpec.model_validate_json(store), Path(folder)))
    except SegueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
