"""The base of an incremental save: the tensors of a committed checkpoint and their shard files.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from segue.checkpoints.format.digests import TensorDigest
from segue.shard import Shard


@dataclass(frozen=True)
class Base:
    """A committed checkpoint to whose tensors a later save may refer."""

    tensors: Mapping[str, TensorDigest]
    homes: Mapping[str, Shard]
    """The shard file of each tensor."""
    saves_since_full: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return this base as plain data for another process. Each shard appears once."""
        shards = list({shard.key: shard for shard in self.homes.values()}.values())
        numbers = {shard.key: number for number, shard in enumerate(shards)}
        return {
            "saves_since_full": self.saves_since_full,
            "shards": [shard.to_json() for shard in shards],
            "tensors": {name: (*digest, numbers[self.homes[name].key]) for name, digest in self.tensors.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The base from the data of `to_json`, without checks."""
        shards = [Shard.from_json(shard) for shard in data["shards"]]
        rows = data["tensors"].items()
        return cls(
            tensors={name: TensorDigest(dtype, tuple(shape), digest) for name, (dtype, shape, digest, _) in rows},
            homes={name: shards[number] for name, (*_, number) in rows},
            saves_since_full=data["saves_since_full"],
        )
