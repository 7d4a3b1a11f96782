"""The part of a save that does not need the last step's numbers. It is done while a device still computes the last
step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.saving.staging import Encoded
from segue.checkpoints.saving.tracing import span
from segue.continuity.recipe_diff import UNTRACKED
from segue.records import Finding
from segue.trainer.workloads.base import Workload
from segue.trainer.workloads.components import ModelState, OptimizerState
from segue.trainer.workloads.state import capture


class _Found(NamedTuple):
    step: int
    untracked: tuple[Finding, ...]
    recorded: Any
    """The record of state outside every component."""
    encoded: Mapping[str, Encoded]
    """Encoded components that only steps change."""


class LookAhead:
    """The preparation of one save. It uses the parts of the state that are known before the last step is complete."""

    def __init__(self, live: Workload) -> None:
        self._live, self._components = live, live.components
        self._found: _Found | None = None

    @paused_collector()
    def look(self) -> None:
        """Inspect the state after the last step.

        All changes by the step are already queued on the device, so the captured tensors will contain them.
        """
        if self._live.structure_changes():
            return  # The save refuses a changed structure. The state may not even be whole.
        trees = capture(self._components)
        with span("look outside"):
            untracked = self._live.look_outside(trees)
        with span("encode ahead"):
            encoded = {name: Encoded.of(name, trees[name]) for name in self._components if self._is_of_steps(name)}
        self._found = _Found(self._live.progress.step, untracked, trees.get(UNTRACKED), encoded)

    def take(self) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """Return the whole state of this step, and findings about state outside every component."""
        if self._found is None or self._found.step != self._live.progress.step:
            self.look()
        assert self._found is not None
        found, self._found = self._found, None
        with span("capture"):
            trees: dict[str, Any] = {
                name: found.encoded[name] if name in found.encoded else each.capture()
                for name, each in self._components.items()
                if name != UNTRACKED
            }
        if found.recorded is not None:
            trees[UNTRACKED] = found.recorded
        return trees, found.untracked

    def _is_of_steps(self, name: str) -> bool:
        """Whether only steps change the component. If so, reading the numbers of a step does not change the
        component."""
        return isinstance(self._components[name], (ModelState, OptimizerState))
