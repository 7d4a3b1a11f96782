"""Describes one save: the values that the save starts with, the written bytes, and the prepared commit.

A prepared commit contains all values for a commit record. The prepared commit is the last object of a save, stored next
to the shards. An attempt may be killed after its last shard but before the commit record. The next attempt then commits
the prepared commit. This module imports only a few modules, because the writer process needs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import crc32c

from segue.shard import Shard

_HEAD = b"%08x "
_HEAD_BYTES = len(_HEAD % 0)


@dataclass(frozen=True)
class Save:
    """The run, attempt, step and settings of one save, without the bytes of the save."""

    run_id: str
    attempt_id: str
    step: int
    base_step: int | None = None
    """Step of the committed save to whose tensors this save may refer.

    The value None means that this save stores all tensors.
    """
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the manifest that are known before the write, as JSON values."""
    is_signed: bool = False
    """Whether the manifest will be signed. A signed manifest contains a SHA-256 of each chunk."""
    first_try: int = 1
    """Number of the first try of this save. The number is 2 if other bytes of the same step may be in the store."""


@dataclass(frozen=True)
class Written:
    """The values for a manifest about bytes that are durable."""

    shards: tuple[Shard, ...]
    """The shards of this save, followed by the shards of earlier checkpoints to which this save refers."""
    components: dict[str, str]
    tensor_count: int
    new_bytes: int
    saves_since_full: int
    """Number of saves since a save stored all tensors. The value is 0 if this save stored all tensors."""

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain data, for another process."""
        return asdict(self) | {"shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the object from the data of `to_json`."""
        return cls(**(dict(data) | {"shards": tuple(Shard.from_json(shard) for shard in data["shards"])}))


@dataclass(frozen=True)
class PreparedCommit:
    """One rank's part of a commit whose record may be missing."""

    facts: Mapping[str, Any]
    """The fields of the manifest that the training process knows."""
    written: Written
    partition_hash: str
    """Hash of the assignment of tensors to ranks, for the tensors that are equal on all ranks.

    All ranks compute the same hash for the same state.
    """

    def encode(self) -> bytes:
        """Return the prepared commit as a checksum, followed by the JSON."""
        content = {"facts": self.facts, "written": self.written.to_json(), "partition_hash": self.partition_hash}
        body = json.dumps(content, separators=(",", ":")).encode()
        return _HEAD % crc32c.crc32c(body) + body

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the prepared commit that `encode` wrote.

        Return None if the bytes are damaged or were not written by `encode`.
        """
        head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
        if head != _HEAD % crc32c.crc32c(body):
            return None
        try:
            content = json.loads(body)
            written = Written.from_json(content["written"])
            _refuse_other_types(written)
            return cls(dict(content["facts"]), written, str(content["partition_hash"]))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None


def _refuse_other_types(written: Written) -> None:
    """Check the types of some fields. The other fields are checked with the manifest, after the merge of the parts."""
    texts = [*written.components.items(), *((shard.key, "") for shard in written.shards)]
    numbers = (written.tensor_count, written.new_bytes, written.saves_since_full)
    if not {str}.issuperset(type(text) for pair in texts for text in pair) or not {int}.issuperset(map(type, numbers)):
        raise TypeError("a name is not text, or a number is not a whole number")
