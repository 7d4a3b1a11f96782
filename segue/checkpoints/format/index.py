"""Defines the index of a checkpoint: the skeletons, and the type, shape and shard file of each tensor.

The module also defines the base of an incremental save, which is a part of the index of a committed checkpoint.
Untrusted parties may have written the objects of a store. The module therefore contains the rules for parsing objects
of a store.

The module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from segue.checkpoints.format.digests import TensorDigest
from segue.checkpoints.format.layout import DTYPES, MOST_LEVELS, TensorSlice
from segue.errors import MalformedCheckpointError, SegueError
from segue.shard import Shard


@dataclass(frozen=True)
class Index:
    """The merged index of all ranks."""

    skeletons: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorDigest] = field(default_factory=dict)
    homes: dict[str, Shard] = field(default_factory=dict)
    """The shard file of each tensor."""
    slices: dict[str, TensorSlice] = field(default_factory=dict)
    """For each stored tensor that is a slice: the position of the slice in the larger tensor."""

    def add(self, data: bytes, *, key: str, shard_files: Mapping[str, Shard]) -> None:
        """Add the index of one rank.

        If two ranks have a skeleton of the same name, the index keeps the skeleton that was added first.

        Raises:
            MalformedCheckpointError: the data is not an index. The message contains the key.
        """
        with untrusted(key):
            found = json.loads(data)
            for name, skeleton in found["skeletons"].items():
                refuse_deep(skeleton)
                self.skeletons.setdefault(name, skeleton)
            for name, row in found["tensors"].items():
                dtype, shape, digest, number = row
                self.tensors[name] = _tensor(dtype, shape, digest)
                self.homes[name] = shard_files[found["images"][_whole(number)]]
            for name, place in found.get("pieces", {}).items():
                self.slices[name] = _slice(*place)


def _tensor(dtype: object, shape: object, digest: object) -> TensorDigest:
    if dtype not in DTYPES or not isinstance(digest, str) or not isinstance(shape, list):
        raise ValueError("a tensor lacks its type, shape or digest")
    return TensorDigest(str(dtype), tuple(map(_whole, shape)), digest)


def _slice(tensor: object, shape: list[object], offsets: list[object]) -> TensorSlice:
    if not isinstance(tensor, str) or len(shape) != len(offsets):
        raise ValueError("a slice has no tensor, or its numbers of offsets and dimensions differ")
    return TensorSlice(tensor, tuple(map(_whole, shape)), tuple(map(_whole, offsets)))


def _whole(number: object) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("a value that must be a whole number is not one")
    return number


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
        """Return the base from the data of `to_json`, without checking the data."""
        shards = [Shard.from_json(shard) for shard in data["shards"]]
        rows = data["tensors"].items()
        return cls(
            tensors={name: TensorDigest(dtype, tuple(shape), digest) for name, (dtype, shape, digest, _) in rows},
            homes={name: shards[number] for name, (*_, number) in rows},
            saves_since_full=data["saves_since_full"],
        )


_MOST_SHOWN = 200


@contextmanager
def untrusted(key: str, *, what: str = "it") -> Iterator[None]:
    """A context manager whose block only parses. Any exception in the block is reported as damage of the object `key`.

    The context manager catches all exceptions, because forged data may raise an unexpected exception. An uncaught
    exception would end every resume of the run. Errors of this machine (memory, files) are not damage, so they are
    raised unchanged.

    Raises:
        MalformedCheckpointError: the object cannot be parsed.
    """
    try:
        yield
    except (SegueError, MemoryError, OSError):
        raise
    except Exception as error:
        why = f"{what} cannot be parsed ({type(error).__name__}: {str(error)[:_MOST_SHOWN]!r})"
        raise MalformedCheckpointError(key=key, why=why) from None


def refuse_deep(tree: Any) -> None:
    """Check that a JSON tree has no more levels than a save may have. A deeper tree would exceed the recursion limit.

    Raises:
        ValueError: the tree has more levels than a save may have.
    """
    level = [tree]
    for _ in range(3 * MOST_LEVELS + 1):
        lists = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [inner for nodes in lists for inner in nodes if isinstance(inner, (dict, list))]
        if not level:
            return
    raise ValueError(f"it has more than {3 * MOST_LEVELS} levels")
