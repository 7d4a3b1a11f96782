"""Starts a run with a checkpoint of another run as the first checkpoint. The module imports torch late."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.continuity.recipe_diff import NOT_STATE
from segue.controller.steps import open_run
from segue.errors import MissingObjectError, OptionError
from segue.interop.export import Progress, no_progress
from segue.interop.first_checkpoint import FirstCheckpoint, commit_first, require_unbegun
from segue.interop.load import choose_checkpoint, read_verified
from segue.records import CheckpointRef, Fork, Value
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.open import find_run, open_log
from segue.spec import RunSpec
from segue.stores import StoreReadError

if TYPE_CHECKING:
    from segue.checkpoints.format.snapshot import Snapshot

log = logging.getLogger(__name__)

OPTIMIZER, POSITION = "optimizer", "position"
_PARTS = {
    # A schedule writes its rates into the optimizer, so both must begin again together.
    OPTIMIZER: ("optimizer", "optimizer.*", "scheduler", "scheduler.*", "scaler", "gradients"),
    POSITION: ("early_stop", "batches", "batches_*", "epoch", "gradients", "rng.*"),
}


class ForkReport(Value):
    """The checkpoint with which a run began, and the origin of this checkpoint."""

    run_id: str
    step: int = Field(ge=0, description="First step number of the run.")
    fork: Fork
    checkpoint: CheckpointRef
    is_new: bool = Field(description="Whether the checkpoint was committed now; False: the run already had it.")
    as_built: tuple[str, ...] = Field(
        (), description="Components that only the recipe has; they begin with the recipe's initial state."
    )


def fork_run(
    spec: RunSpec,
    source: str,
    *,
    step: int | Literal["best"] | None = None,
    reset: Collection[str] = (),
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> ForkReport:
    """Make a checkpoint of the run `source` the first checkpoint of another run in the same store.

    By default, the newest checkpoint is used. The fork has all state of the checkpoint, including the random streams
    and the position in the data. With an equal spec, the fork trains exactly like the source. `reset` names the parts
    that the fork does not use. The possible parts are:

    * "optimizer": the optimizer, the schedules and the loss scale.
    * "position": the step, the data position, the random streams and the early stop. The fork then begins at step 0.
    * The name of a component of the checkpoint, such as "extra.average".

    The code, the data and the settings of the new run may differ from the source. If the checkpoint lacks a component,
    the component begins as the recipe builds it. segue builds the recipe on the CPU, to check that the state fits the
    recipe.

    The call blocks until the checkpoint is durable. After a crash, repeat the call. If the checkpoint was already
    committed, the repeated call changes nothing.

    Raises:
        RunNotFoundError, NoCheckpointError, UnknownStepError, PrunedCheckpointError, QuarantinedCheckpointError,
            NoMetricError, DamagedCheckpointError: the requested checkpoint does not exist, or it is damaged.
        SpecError: the goal is not after the step of the checkpoint, or `reset` names a part that the checkpoint does
            not have.
        RunBegunError: the run has already begun in another way.
        ForkMismatchError, RecipeError: the state does not fit the recipe.
        FencedError, StalePlanError: another attempt claimed the run. The call committed nothing.
        StoreUnreachableError, StoreWriteError, StoreReadError: the store could not be used.
    """
    progress, clock = progress or no_progress, clock or SystemClock()
    # If the store fails here, opening the run gives the better error.
    with suppress(StoreReadError, MissingObjectError):
        history = read_history(open_log(spec))
        known = _same_fork(spec.run_id, history, source, step, reset)
        if known is not None:
            return known
        require_unbegun(history, run_id=spec.run_id)
    from_log, from_history = find_run(source, spec.store)
    chosen = choose_checkpoint(from_history, run_id=source, step=step, take_quarantined=False)
    fork = Fork(
        run_id=source,
        attempt_id=chosen.ref.attempt_id,
        step=chosen.manifest.step,
        reset=tuple(dict.fromkeys(reset)),
    )
    first_step = 0 if POSITION in reset else chosen.manifest.step
    if first_step >= spec.steps:
        raise OptionError(
            f"steps: the goal of {spec.steps} is not after step {first_step} of {fork.name}; give more --steps"
        )
    # The import of torch takes seconds, so all checks without torch come before it.
    progress("reading the checkpoint")
    snapshot = read_verified(from_log, chosen)
    _require_known(snapshot, reset, name=fork.name)
    from segue.checkpoints.saving.staging import StagingArea
    from segue.interop.fork_check import require_fit

    first = _first(spec, chosen, fork, snapshot)
    as_built: tuple[str, ...] = ()
    if spec.recipe is not None and spec.ranks in (None, 1):
        progress("building the recipe")
        only_here = require_fit(spec, first.trees, name=fork.name)
        as_built = tuple(name for name in only_here if not _is_left_out(name, reset))
    with closing(StagingArea()) as staging:
        staged = staging.take(first.trees)
        # The run has no state yet, so a changed spec does no harm.
        runlog = open_run(spec, clock=clock, accept_drift=True)
        progress("writing the checkpoint")
        checkpoint = commit_first(runlog, first, staged, clock=clock)
    log.info("run forked from=%s step=%d", fork.name, first.step)
    facts = {"step": first.step, "fork": fork, "checkpoint": checkpoint, "is_new": True, "as_built": as_built}
    return ForkReport(run_id=spec.run_id, **facts)


def _is_left_out(component: str, reset: Collection[str]) -> bool:
    patterns = (pattern for name in reset for pattern in _PARTS.get(name, (name, f"{name}.*")))
    return any(fnmatchcase(component, pattern) for pattern in patterns)


def _same_fork(
    run_id: str, history: History, source: str, step: int | Literal["best"] | None, reset: Collection[str]
) -> ForkReport | None:
    """If the run began with the requested fork, return this fork. If not, return None."""
    first = next(iter(history.checkpoints), None)
    fork = first.manifest.forked_from if first is not None else None
    if first is None or fork is None or fork.run_id != source or set(fork.reset) != set(reset):
        return None
    # The newest and the best checkpoint of the source may have changed since the fork.
    if isinstance(step, int) and fork.step != step:
        return None
    return ForkReport(run_id=run_id, step=first.manifest.step, fork=fork, checkpoint=first.ref, is_new=False)


def _require_known(snapshot: Snapshot, reset: Collection[str], *, name: str) -> None:
    from segue.trainer.workloads.state import PROGRESS

    there = sorted(snapshot.skeletons.keys() - NOT_STATE - {PROGRESS})
    for asked in reset:
        if asked in _PARTS or any(_is_left_out(each, [asked]) for each in there):
            continue
        raise OptionError(f"reset: {name} has no {asked!r}; name optimizer, position or one of {', '.join(there)}")


def _first(spec: RunSpec, chosen: Checkpoint, fork: Fork, snapshot: Snapshot) -> FirstCheckpoint:
    from segue.checkpoints.format.state_tree import decode_tree
    from segue.trainer.workloads.components import Progress as Position
    from segue.trainer.workloads.state import PROGRESS

    manifest, position = chosen.manifest, Position()
    trees: dict[str, Any] = {
        name: decode_tree(skeleton, snapshot.tensors)
        for name, skeleton in snapshot.skeletons.items()
        if name not in NOT_STATE and not _is_left_out(name, fork.reset)
    }
    is_at_start = POSITION in fork.reset
    if not is_at_start:
        position.restore(trees[PROGRESS])
        position.finish_reason = None  # The end of the source is not the end of the fork.
    return FirstCheckpoint(
        spec=spec,
        origin=fork,
        step=position.step,
        samples_seen=position.samples_seen,
        epoch=0 if is_at_start else manifest.epoch,
        environment=manifest.environment,
        trees=trees | {PROGRESS: position.capture()},
    )
