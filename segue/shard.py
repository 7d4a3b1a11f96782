"""Defines one stored blob of a checkpoint, in a separate module, because the writer process starts without pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt


@dataclass(frozen=True)
class Shard:
    """One stored blob of a checkpoint, with a checksum for each of its chunks."""

    key: str
    """Object key relative to the run's folder."""
    size_bytes: Annotated[int, Ge(0)]
    chunk_bytes: Annotated[int, Gt(0)]
    chunk_crc32c: tuple[int, ...]
    chunk_sha256: tuple[str, ...] = ()
    """SHA-256 of each chunk, if the manifest is signed.

    A signed manifest needs the hash, because a checksum detects damage but not forgery.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    """Validates a shard in a record like a record."""

    def to_json(self) -> dict[str, Any]:
        """Return the shard as plain data, for another process and for manifests."""
        # Without hashes the field is left out: older versions refuse a record with a field that they do not know.
        return {name: value for name, value in asdict(self).items() if name != "chunk_sha256" or value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the shard from the data of `to_json`, without any check."""
        lists = {name: tuple(data.get(name, ())) for name in ("chunk_crc32c", "chunk_sha256")}
        return cls(**(dict(data) | lists))
