"""One save: its facts, the part of it that is durable, and its prepared commit. Light, for the writer process.

A prepared commit holds everything that a commit record needs. It is stored beside the shards, as the last object of a
save: an attempt that is killed between its last shard and the record leaves a prepared commit behind, and the next
attempt commits it.
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
    """The facts of one save, besides its bytes."""

    run_id: str
    attempt_id: str
    step: int
    base_step: int | None = None
    """Step of the committed save to whose tensors this save may refer; None: this save stores every tensor."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The fields of its manifest that are known before it is written, as JSON values."""
    is_signed: bool = False
    """Whether its manifest will be signed, and so has a SHA-256 of each chunk."""


@dataclass(frozen=True)
class Written:
    """The facts of a manifest about bytes that are now durable."""

    shards: tuple[Shard, ...]
    """Its own shards first, then those of earlier checkpoints that it refers to."""
    components: dict[str, str]
    tensor_count: int
    new_bytes: int
    saves_since_full: int
    """How many saves ago all tensors were stored; 0 if this save stored them."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, for another process."""
        return asdict(self) | {"shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From the data of `to_json`."""
        return cls(**(dict(data) | {"shards": tuple(Shard.from_json(shard) for shard in data["shards"])}))


@dataclass(frozen=True)
class PreparedCommit:
    """One rank's part of a commit that may never have been recorded."""

    facts: Mapping[str, Any]
    """The fields of the manifest that the training process knows."""
    written: Written
    partition_hash: str
    """Equal on all ranks whose shards add up to one state."""

    def encode(self) -> bytes:
        """The prepared commit as JSON, after a checksum of that JSON."""
        content = {"facts": self.facts, "written": self.written.to_json(), "partition_hash": self.partition_hash}
        body = json.dumps(content, separators=(",", ":")).encode()
        return _HEAD % crc32c.crc32c(body) + body

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """The commit that `encode` wrote; None if the bytes are damaged, or not from `encode`."""
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
    """Check only these types: the rest is checked with the manifest, after the parts of several ranks are merged."""
    texts = [*written.components.items(), *((shard.key, "") for shard in written.shards)]
    numbers = (written.tensor_count, written.new_bytes, written.saves_since_full)
    if not {str}.issuperset(type(text) for pair in texts for text in pair) or not {int}.issuperset(map(type, numbers)):
        raise TypeError("a name is no text, or a number no whole number")
