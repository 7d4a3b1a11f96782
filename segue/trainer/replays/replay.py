"""A replay: a checkpoint is restored into a newly built recipe, and the next steps are repeated. Nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from segue.checkpoints.format.digests import Digests
from segue.checkpoints.format.snapshot import take
from segue.checkpoints.loading.live_digest import digest
from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.snapshot import snapshot_of
from segue.continuity.noise import UNIT
from segue.continuity.recipe_diff import (
    COMPARED,
    NOT_STATE,
    UNTRACKED,
    SetupChanges,
    differing_paths,
    setup_changes,
)
from segue.continuity.verdict import digest_findings
from segue.launch.assignment import Assignment
from segue.records import Environment, Finding, WitnessRow
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog
from segue.stores.base import Store
from segue.trainer.process.environment import environment_of, prepare_device
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.replay_process import cap_device_memory
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.state import BUFFERS, PROGRESS, capture

_TF32_UNIT = 2.0**-10
_MOST_UNIT = 2.0**-7
"""The unit of bf16. Coarser formats are used only for the scaled factors of single products, never for results."""


@dataclass
class Formats:
    """The coarsest number format among the recorded tensors."""

    unit: float = UNIT
    """Distance from 1 to the next number in the coarsest format: the largest relative change that one rounding makes to
    a value."""

    def add(self, dtype: torch.dtype) -> None:
        if dtype.is_floating_point:
            self.unit = max(self.unit, min(torch.finfo(dtype).eps, _MOST_UNIT))


@contextmanager
def noting_formats() -> Iterator[Formats]:
    """A `with` block that records the formats of tensors that are saved for a backward pass. The record changes no
    number."""
    formats = Formats(_TF32_UNIT if _is_tf32() else UNIT)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        formats.add(tensor.dtype)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield formats


def _is_tf32() -> bool:
    """Whether accelerators round the factors of matrix products or convolutions to ten bits (TF32)."""
    return torch.cuda.is_available() and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)


@dataclass(frozen=True)
class Replay:
    """The results of a replay: facts about the checkpoint, and the rows of the steps after the checkpoint."""

    committed: Digests
    restored: Digests
    setup: SetupChanges
    setup_trees: dict[str, Any]
    """The setup as trees, by component."""
    untracked: tuple[Finding, ...]
    process_values: tuple[str, ...]
    """Setup values that differ between this process and the trainer, although both built the same recipe."""
    environment_changes: tuple[str, ...]
    left_out: frozenset[str]
    """Fingerprints of the batches that this process skips. From the first skipped batch on, rows cannot be compared."""
    rows: tuple[WitnessRow, ...]
    """Rows of the replayed steps; empty if the state was not restored."""
    unit: float
    """Largest relative change that one rounding makes to a value, in the coarsest number format of a step."""
    environment: Environment
    recipe_changes: tuple[Finding, ...]
    """Changes of the setup or of untracked values since the checkpoint, except values that are known to depend on the
    process."""
    digests: dict[int, dict[str, str]]
    """Digest of each component after each watched step."""


def replay(
    assignment: Assignment,
    runlog: RunLog,
    checkpoint: Checkpoint,
    *,
    steps: int,
    copy: Store | None = None,
    with_formats: bool = False,
    watched: Collection[int] | None = None,
) -> Replay:
    """Restore a checkpoint into a newly built recipe, and make `steps` steps. If `copy` is given, segue first searches
    this store for the checkpoint.

    If `with_formats` is True, one more step is made, to find the number formats of the recipe. If `watched` is given,
    the replay also does the work between the steps, and computes state marks and digests after the watched steps.

    Raises:
        CheckpointError, StoreReadError: the checkpoint cannot be read.
    """
    spec = assignment.spec
    device = prepare_device(spec)
    cap_device_memory(device)
    tiers = [*([copy] if copy is not None else []), runlog.store]
    stored = read_stored(tiers, run_id=runlog.run_id, manifest=checkpoint.manifest)
    snapshot = snapshot_of(stored)
    recipe = LiveRecipe(spec, device=device, ranks=Ranks(), skips=assignment.plan.skips).restore(snapshot)
    # This call comes after the build, because a recipe may set the number of threads.
    environment = environment_of(device, is_deterministic=spec.deterministic)
    changes = checkpoint.manifest.environment.differs_from(environment)
    groups = recipe.groups()
    live = take(capture(recipe.components), copy=False, to_host=False)
    restored = digest(live)
    found = setup_changes(
        snapshot.skeletons,
        live.skeletons,
        environment_changes=changes,
        process_values=read_history(runlog).process_values,
    )
    # The code and config are the same as in the trainer. A difference in the setup comes from this process, so it only
    # explains rows that differ.
    assert recipe.outside is not None  # There is one rank.
    setup = SetupChanges(noted=(*found.findings, *found.accepted, *found.noted, *recipe.outside.of_process()))
    untracked = recipe.outside.lost(snapshot.skeletons.get(UNTRACKED, {}))
    own = differing_paths(snapshot.skeletons, live.skeletons)
    left_out = recipe.left_out()
    rows: list[WitnessRow] = []
    digests: dict[int, dict[str, str]] = {}
    unit = UNIT
    if not digest_findings(stored.digests, restored):
        for number in range(1, steps + 1):
            group = next(groups)
            row, _ = recipe.step(group, recipe.prelude(group))
            is_watched = watched is not None and row.step in watched
            if number == steps or is_watched:
                row = row._replace(state=recipe.state_marks())
            rows.append(row.as_witness())
            recipe.advance(group.start, group.samples)
            if watched is not None:
                recipe.finish_step(evaluating=nullcontext)
            if is_watched:
                digests[row.step] = _state_digests(recipe)
        if digests and recipe.has_metric:
            recipe.evaluate()  # Finds out which components the metric changes; the replay evaluates at no commit.
        if with_formats and steps and recipe.progress.step < spec.steps:
            # The formats are found in a separate step, because rows that are compared must be made in the same way as
            # in training.
            with noting_formats() as formats:
                group = next(groups)
                recipe.step(group, recipe.prelude(group))
            unit = formats.unit
    trees = {name: live.skeletons[name] for name in COMPARED if name in live.skeletons}
    changed = {name.removesuffix(BUFFERS) for name in recipe.changed_between_steps}
    return Replay(
        committed=stored.digests,
        restored=restored,
        setup=setup,
        setup_trees=trees,
        untracked=untracked,
        process_values=own,
        environment_changes=changes,
        left_out=left_out,
        rows=tuple(rows),
        unit=unit,
        environment=environment,
        recipe_changes=(*found.findings, *found.accepted, *untracked),
        digests={
            step: {name: each for name, each in parts.items() if name not in changed} for step, parts in digests.items()
        },
    )


def _state_digests(recipe: LiveRecipe) -> dict[str, str]:
    """Return the digests of those components that a commit of the same steps contains. The result does not include the
    position."""
    components = {n: c for n, c in recipe.components.items() if n not in NOT_STATE and n != PROGRESS}
    return dict(digest(take(capture(components), copy=False, to_host=False)).components)
