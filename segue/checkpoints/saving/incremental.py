"""Makes incremental saves.

An incremental save refers to unchanged tensors of a committed checkpoint and does not store them again. Incremental
saves suit recipes that train only a part of the model. The manifest lists all needed shards: the shards of the save
itself and the shards of earlier saves. Pruning therefore knows directly which shards are in use, and a restore never
follows a chain of manifests.
"""

from __future__ import annotations

from collections.abc import Mapping

from segue.checkpoints.format.digests import TensorDigest
from segue.checkpoints.format.index import Base
from segue.checkpoints.format.layout import ShardLayout, layout_of
from segue.stores.direct_io import page_buffer

_MOST_KEPT = 2
_WORTH_SHARE = 0.9
"""If at least this share of the bytes has changed, all tensors are stored, so that no earlier shard file is needed."""


class Bases:
    """The newest saves by step. A later save can refer only to these saves."""

    def __init__(self) -> None:
        self._kept: dict[int, Base] = {}

    def keep(self, step: int, base: Base) -> None:
        self._kept.pop(step, None)
        self._kept[step] = base
        for oldest in list(self._kept)[:-_MOST_KEPT]:
            del self._kept[oldest]

    def get(self, step: int | None) -> Base | None:
        """Return the base of this step.

        Return None if `step` is None or unknown. Without a base, a full save is made.
        """
        return None if step is None else self._kept.get(step)


def unchanged_since(base: Base, tensors: Mapping[str, TensorDigest], shard_layout: ShardLayout) -> frozenset[str]:
    """Return the names of the tensors that need not be stored again.

    The result is empty if too few bytes would be saved.
    """
    same = frozenset(name for name, digest in tensors.items() if base.tensors.get(name) == digest)
    same_bytes = sum(shard_layout.placed[name].size_bytes for name in same)
    total_bytes = sum(placed.size_bytes for placed in shard_layout.placed.values())
    return same if total_bytes - same_bytes < _WORTH_SHARE * total_bytes else frozenset()


def without(names: frozenset[str], shard_file: memoryview, shard_layout: ShardLayout) -> tuple[memoryview, ShardLayout]:
    """A copy of the shard file without the tensors in `names`, with its layout."""
    kept = {name: placed for name, placed in shard_layout.placed.items() if name not in names}
    thin_layout = layout_of({name: placed.spec for name, placed in kept.items()})
    thin = page_buffer(thin_layout.size_bytes)
    thin[: len(thin_layout.head)] = thin_layout.head
    for name, (_, start, size_bytes) in thin_layout.placed.items():
        source = kept[name].start
        thin[start : start + size_bytes] = shard_file[source : source + size_bytes]
    return thin, thin_layout
