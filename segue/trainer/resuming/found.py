"""The checkpoint of a resume. The module selects and verifies the checkpoint, and then restores it into the live
objects."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from segue.checkpoints.format.dtensor import OwnSlices, SliceNotReadError
from segue.checkpoints.loading.select import Restorable, newest_valid
from segue.records import CheckpointRef
from segue.runlog.history import Checkpoint
from segue.runlog.log import RunLog
from segue.stores.base import Store
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.state import restore_all

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The first phase of a resume: the bytes of a checkpoint are in memory and verified, but nothing is compared
    yet."""

    source: Restorable
    own: OwnSlices | None
    """The slices of a sharded state that this rank has read; None if this rank has read the whole state."""
    memory_bytes: int | None

    @property
    def checkpoint(self) -> Checkpoint:
        return self.source.checkpoint

    @property
    def parent(self) -> CheckpointRef:
        return self.checkpoint.ref

    @property
    def stored(self) -> Collection[str]:
        """Names of the components in the checkpoint."""
        return self.source.snapshot.skeletons

    @property
    def ranks(self) -> int:
        """Number of ranks that made the checkpoint."""
        return self.checkpoint.manifest.environment.world_size

    @property
    def read_bytes(self) -> int:
        """Number of bytes in the tensors that this rank has read."""
        # If this rank read only a part of a tensor, the tensor is on torch's meta device, and does not contain the
        # part.
        tensors = self.source.snapshot.tensors.values()
        return sum(tensor.nbytes for tensor in tensors if not tensor.is_meta)

    def as_built(self, components: Collection[str]) -> frozenset[str]:
        """Components of a fork that keep their initial state, because the other run has no state for them."""
        is_fork = self.checkpoint.manifest.forked_from is not None
        return frozenset(name for name in components if is_fork and name not in self.stored)


@dataclass(frozen=True)
class CheckpointSource:
    """Finds and reads the checkpoint of one attempt."""

    runlog: RunLog
    epoch: int
    fast: Sequence[Store]
    ranks: Ranks

    def newest(
        self, *, at_most: CheckpointRef | None, own: OwnSlices | None = None, memory_bytes: int | None = None
    ) -> Found | None:
        """Verify and return the newest valid checkpoint up to `at_most`. If `own` is given, only these slices are
        verified.

        The method raises the same errors as `newest_valid`.
        """
        source = newest_valid(
            self.runlog,
            epoch=self.epoch,
            at_most=at_most,
            fast=self.fast,
            readers=self.ranks if self.ranks.count > 1 else None,
            own=own,
            memory_bytes=memory_bytes,
        )
        return Found(source, own, memory_bytes) if source is not None else None

    def restore(self, found: Found, components: Mapping[str, Component]) -> Found | None:
        """Restore the live objects in order, with the random streams last. Return the checkpoint that was used.

        If the state is now sharded in another way, the whole checkpoint is read again. Return None if the checkpoint no
        longer exists.
        """
        missing = ""
        try:
            restore_all(components, found.source.snapshot)
        except SliceNotReadError as error:
            missing = str(error)
        if found.own is None or not (missing := self.ranks.first_of(missing)):
            return found
        log.info("the sharding has changed, reading the whole state slice=%s", missing)
        whole = self.newest(at_most=found.parent, memory_bytes=found.memory_bytes)
        if whole is not None:
            restore_all(components, whole.source.snapshot)
        return whole
