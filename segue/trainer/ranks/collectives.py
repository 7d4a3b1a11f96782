"""Ranks: the processes of one attempt that train together, and how they come to one word.

Rank 0 leads: it alone claims, decides, commits and reports. The others follow its word, which travels by small
collectives on the CPU, so that nobody waits for an accelerator.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from segue.launch.rendezvous import RANKS_VARIABLE


class Ranks:
    """A process that trains alone: its own word is everybody's."""

    rank = 0
    count = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def gather(self, data: bytes) -> list[bytes]:
        """What every rank gives, in their order; all must call it, with as many bytes.

        Raises:
            RuntimeError: a rank is gone, or did not come in time.
        """
        return [data]

    def gather_texts(self, text: str) -> list[str]:
        """What every rank says, in their order; all must call it."""
        data = text.encode()
        lengths = [int.from_bytes(found, "little") for found in self.gather(len(data).to_bytes(8, "little"))]
        found = self.gather(data.ljust(max(lengths), b"\0")) if max(lengths) else [b""] * self.count
        return [piece[:length].decode() for piece, length in zip(found, lengths, strict=True)]

    def leader_says(self, value: bool) -> bool:
        """Rank 0's value, for all; all must call it."""
        return self.gather(bytes([value]))[0] == b"\1"

    def all(self, value: bool) -> bool:
        """Whether it is true of every rank; all must call it."""
        return all(found == b"\1" for found in self.gather(bytes([value])))

    def first_of(self, text: str) -> str:
        """The first text that is not empty, by rank; all must call it."""
        return next((found for found in self.gather_texts(text) if found), "")

    def limit_waiting(self) -> None:
        """See to it that no collective waits longer for a rank than is allowed."""

    def close(self) -> None:
        """Leave the others."""


class TorchRanks(Ranks):
    """Processes that torchrun started."""

    def __init__(self, device: torch.device, *, wait_seconds: float) -> None:
        """Meet the others. `wait_seconds` is how long any rank may keep them waiting, here and in every step."""
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.wait_seconds = wait_seconds
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=timedelta(seconds=wait_seconds))

    def gather(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(found, mine)
        return [bytes(piece.numpy()) for piece in found]

    def limit_waiting(self) -> None:
        """Let nobody wait longer in groups that the recipe has made either: theirs is half an hour by default."""
        groups = dist.distributed_c10d._world.pg_map  # torch has no public way to name them all.
        for group in list(groups):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.wait_seconds), group)

    def close(self) -> None:
        dist.destroy_process_group()


def is_one_of_several() -> bool:
    """Whether this process was started as one of an attempt's ranks."""
    return RANKS_VARIABLE in os.environ


class Exchange:
    """Notes that ranks leave for each other, at any time and from any thread; torchrun keeps them."""

    def __init__(self, *, wait_seconds: float) -> None:
        # A connection of its own: the process group's is held while somebody waits for a note.
        self._notes = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=wait_seconds),
        )

    def put(self, key: str, text: str) -> None:
        self._notes.set(f"segue/{key}", text)

    def get(self, key: str) -> str | None:
        """The note; None while nobody left it."""
        if not self._notes.check([f"segue/{key}"]):
            return None
        return bytes(self._notes.get(f"segue/{key}")).decode()

    def count(self, key: str) -> int:
        """How often this was called for the key, by all ranks together."""
        return int(self._notes.add(f"segue/{key}", 1))
