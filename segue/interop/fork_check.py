"""Checks whether the state of a checkpoint fits a recipe, before the run buys capacity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segue.checkpoints.format.snapshot import digest, take
from segue.continuity.verdict import digest_findings
from segue.data.streams import seed_all, streams_kept
from segue.errors import ForkMismatchError
from segue.interop.initial_state import built
from segue.recipe import import_build
from segue.spec import RunSpec
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import RNG_PREFIX, capture, components_of, restore_all


def require_fit(spec: RunSpec, trees: Mapping[str, Any], *, name: str) -> tuple[str, ...]:
    """Build the recipe on the CPU, restore the state as a resume does, and compare the digests.

    Errors use `name` as the name of the checkpoint. The function returns the components that only the recipe has. At
    the end, the function restores the global random streams.

    Raises:
        ForkMismatchError: a component does not fit. The error names the component.
        RecipeError: the recipe cannot be built.
    """
    build = import_build(spec.recipe_path)
    with streams_kept():
        seed_all(spec.seed)
        recipe = built(build, spec)
        found = components_of(recipe, Progress(), name=spec.recipe_path)
        # The random streams depend on the machine, and this machine may have other devices.
        kept = {part: tree for part, tree in trees.items() if not part.startswith(RNG_PREFIX)}
        components = {part: each for part, each in found.items() if not part.startswith(RNG_PREFIX)}
        snapshot = take(kept, copy=False)
        for part, component in components.items():
            try:
                restore_all({part: component}, snapshot)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise ForkMismatchError(fork=name, component=part, why=why) from error
        live = {part: each for part, each in components.items() if part in kept}
        finding = next(iter(digest_findings(digest(snapshot), digest(take(capture(live), copy=False)))), None)
    if finding is not None:
        raise ForkMismatchError(fork=name, component=finding.component, why=finding.sentence)
    return tuple(part for part in components if part not in kept)
