"""Incremental saves: a tensor that has not changed since a committed checkpoint is named, not stored again.

For recipes that train a part of the model. The manifest lists every shard it needs, its own and earlier ones, so that
pruning sees at once what is still in use, and restoring never has to follow a chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segue.checkpoints.format.digests import TensorDigest
from segue.checkpoints.format.layout import ShardLayout, layout_of
from segue.shard import Shard
from segue.stores.direct import page_buffer

_MOST_KEPT = 2
_WORTH_SHARE = 0.9
"""From this share of changed bytes on, a whole image is written: it then needs no other."""


@dataclass(frozen=True)
class Base:
    """A committed checkpoint to refer to."""

    tensors: Mapping[str, TensorDigest]
    homes: Mapping[str, Shard]
    """The image in which each tensor lies."""
    saves_since_full: int = 0


class Bases:
    """What was written of late, by step: only the newest few can still be referred to."""

    def __init__(self) -> None:
        self._kept: dict[int, Base] = {}

    def keep(self, step: int, base: Base) -> None:
        self._kept.pop(step, None)
        self._kept[step] = base
        for oldest in list(self._kept)[:-_MOST_KEPT]:
            del self._kept[oldest]

    def get(self, step: int | None) -> Base | None:
        """None when it is not known, or not asked for: the save is then a full one."""
        return None if step is None else self._kept.get(step)


def base_to_json(base: Base) -> dict[str, Any]:
    """As plain data, each shard once."""
    shards = list({shard.key: shard for shard in base.homes.values()}.values())
    numbers = {shard.key: number for number, shard in enumerate(shards)}
    return {
        "saves_since_full": base.saves_since_full,
        "shards": [shard.to_json() for shard in shards],
        "tensors": {name: (*digest, numbers[base.homes[name].key]) for name, digest in base.tensors.items()},
    }


def base_from_json(data: dict[str, Any]) -> Base:
    """The base that `base_to_json` was given."""
    shards = [Shard.from_json(shard) for shard in data["shards"]]
    rows = data["tensors"].items()
    return Base(
        tensors={name: TensorDigest(dtype, tuple(shape), digest) for name, (dtype, shape, digest, _) in rows},
        homes={name: shards[number] for name, (*_, number) in rows},
        saves_since_full=data["saves_since_full"],
    )


def unchanged_since(base: Base, tensors: Mapping[str, TensorDigest], shard_layout: ShardLayout) -> frozenset[str]:
    """Names of the tensors that need not be stored again; none when that would save too little."""
    same = frozenset(name for name, digest in tensors.items() if base.tensors.get(name) == digest)
    same_bytes = sum(shard_layout.placed[name].size_bytes for name in same)
    total_bytes = sum(placed.size_bytes for placed in shard_layout.placed.values())
    return same if total_bytes - same_bytes < _WORTH_SHARE * total_bytes else frozenset()


def without(names: frozenset[str], image: memoryview, shard_layout: ShardLayout) -> tuple[memoryview, ShardLayout]:
    """The image of the other tensors alone, in memory of its own."""
    kept = {name: placed for name, placed in shard_layout.placed.items() if name not in names}
    thin_layout = layout_of({name: placed.spec for name, placed in kept.items()})
    thin = page_buffer(thin_layout.size_bytes)
    thin[: len(thin_layout.head)] = thin_layout.head
    for name, (_, start, size_bytes) in thin_layout.placed.items():
        source = kept[name].start
        thin[start : start + size_bytes] = image[source : source + size_bytes]
    return thin, thin_layout
