"""The live state immediately after a restore, and a check for changes that other code makes before the first step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from segue.checkpoints.format.digests import Digests, owners
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.loading.live_digest import Looks, digest
from segue.continuity.verdict import state_findings
from segue.records import Finding
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.state import capture

_CHANGED_BY_STEP = ("model", "buffers", "modes", "optimizer", "scheduler", "scaler")
"""Components that only a step changes. Drawing a batch may also change random streams and `extra`."""


@dataclass(frozen=True)
class RestoredState:
    """Digests of the live objects after the restore."""

    digests: Digests
    looks: Looks
    """A quick check of tensors on the accelerator, for components that only a step changes."""

    @classmethod
    def of(cls, live: Snapshot, components: Collection[str]) -> Self:
        """Record the live state `live`, which was captured without a copy."""
        there = _on_device(live.tensors)
        fixed = {name: there[name] for name, owner in owners(there, components) if owner in _CHANGED_BY_STEP}
        return cls(digest(live), Looks.at(fixed))

    def changes(self, components: Mapping[str, Component]) -> tuple[Finding, ...]:
        """Return the changes since the restore in components that only a step changes."""
        before = self.digests
        fixed = {name: c for name, c in components.items() if name in _CHANGED_BY_STEP and name in before.components}
        live = self._digest_again(take(capture(fixed), copy=False, to_host=False))
        digests = {name: value for name, value in before.components.items() if name in fixed}
        tensors = {
            name: before.tensors[name] for name, owner in owners(before.tensors, before.components) if owner in fixed
        }
        return state_findings(Digests(digests, tensors), live)

    def _digest_again(self, live: Snapshot) -> Digests:
        """Return new digests of the same state. Tensors on an accelerator are hashed only if the quick check shows a
        change."""
        there = _on_device(live.tensors)
        is_same = self.looks.finds_same(there)
        return digest(live, known={name: self.digests.tensors[name] for name in there} if is_same else None)


def _on_device(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.device.type != "cpu"}
