"""Starts a run with weights from a file as the first checkpoint. The module imports torch late."""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from pathlib import Path

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.controller.steps import open_run
from segue.errors import (
    COMMAND_LINE,
    MissingObjectError,
    SpecError,
    WeightsFileError,
)
from segue.interop.export import Progress, no_progress
from segue.interop.first_checkpoint import commit_first, require_unbegun
from segue.records import (
    CheckpointRef,
    Value,
    WeightsFile,
)
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import StoreReadError

log = logging.getLogger(__name__)

_INDEX_OF_DCP = ".metadata"


class ImportReport(Value):
    """The file of imported weights, the first checkpoint, and notes about differences."""

    run_id: str
    step: int = Field(ge=0)
    file: WeightsFile
    checkpoint: CheckpointRef
    prefix: str = Field(description="Prefix that was removed from every name in the file.")
    kept_as_built: tuple[str, ...] = Field(description="Names that only the model has; `partial` permits them.")
    notes: tuple[str, ...] = Field(description="Sentences about the differences between the file and the checkpoint.")


def import_weights(
    spec: RunSpec,
    file: Path,
    *,
    step: int = 0,
    partial: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Make the first checkpoint of a run from the weights in `file`. The recipe builds all other state.

    The run begins at `step`, and the samples of earlier steps count as seen. If `partial` is true, the file may lack
    some of the model's weights. The call blocks until the checkpoint is durable. After a crash before the commit,
    repeat the call.

    Raises:
        WeightsFileError, WeightsMismatchError: the file has no weights of this model. The call changed nothing.
        RunBegunError: the run has a checkpoint, or an attempt that may be active.
        SpecError, RecipeError, UnsupportedStateError: the recipe cannot provide the state. The call changed nothing.
        FencedError, StalePlanError: another import or a trainer has claimed the run.
        StoreUnreachableError, StoreWriteError, StoreReadError: the store could not be used.
    """
    progress, clock = progress or no_progress, clock or SystemClock()
    if step >= spec.steps:
        problem = f"step: {step} is not before the goal of {spec.steps} steps; give a lower --step or more --steps"
        raise SpecError(source=COMMAND_LINE, problems=(problem,))
    path = require_weights_file(file)
    # If the store fails here, opening the run gives the better error.
    with suppress(StoreReadError, MissingObjectError):
        require_unbegun(read_history(open_log(spec)), run_id=spec.run_id)
    # The import of torch takes seconds, so all checks without torch come before it.
    progress("loading torch")
    from segue.checkpoints.saving.staging import StagingArea
    from segue.interop.initial_state import first_state

    state = first_state(spec, path, step=step, partial=partial, progress=progress)
    with closing(StagingArea()) as staging:
        staged = staging.take(state.first.trees)
        # The run has no state yet, so a changed spec does no harm.
        runlog = open_run(spec, clock=clock, accept_drift=True)
        progress("writing the checkpoint")
        checkpoint = commit_first(runlog, state.first, staged, clock=clock)
    log.info("weights imported step=%d file=%s sha256=%s", step, state.file.name, state.file.sha256)
    return ImportReport(
        run_id=spec.run_id,
        step=step,
        file=state.file,
        checkpoint=checkpoint,
        prefix=state.fit.prefix,
        kept_as_built=state.fit.kept_as_built,
        notes=state.notes,
    )


def require_weights_file(file: Path) -> Path:
    """Check that the path is a file with content, or a folder of torch.distributed.checkpoint. Return the path.

    Raises:
        WeightsFileError: the path does not exist, is a folder of another format, or is an empty file.
    """
    try:
        path = file.expanduser()
        if (path / _INDEX_OF_DCP).is_file():
            return path
        if path.is_dir():
            fix = "name the file in this folder that contains the model's weights."
            why = "is a folder, but not a folder of torch.distributed.checkpoint"
            raise WeightsFileError(file=str(file), why=why, fix=fix)
        is_empty = path.stat().st_size == 0
    except (OSError, RuntimeError) as error:  # RuntimeError: no such user, as in ~name.
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise WeightsFileError(file=str(file), why=why, fix="check the path.") from None
    if is_empty:
        raise WeightsFileError(file=str(file), why="is empty", fix="save or copy it again.")
    return path
