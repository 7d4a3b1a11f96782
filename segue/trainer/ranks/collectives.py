"""Ranks: the processes of one attempt that train together, and the collectives by which they agree.

Rank 0 is the leader: only it claims, decides, commits and reports. The other ranks follow its decisions, which small
collectives on the CPU distribute, so that no rank waits for an accelerator.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from segue.launch.rendezvous import RANKS_VARIABLE

log = logging.getLogger(__name__)

_kept: set[Any] = set()
"""Every process group that this process has trained with, until it ends.

DistributedDataParallel's reducer holds its group. If that were the last reference, the reducer would destroy the group
with Python's lock held, and wait for gloo's threads; a thread that ends a broken collective waits for that lock.
"""


class Ranks:
    """A process that trains alone. It is the leader and the only rank."""

    rank = 0
    count = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def gather(self, data: bytes) -> list[bytes]:
        """The data of every rank, by rank. Every rank must call it, with the same number of bytes.

        Raises:
            RuntimeError: a rank is gone, or did not answer in time.
        """
        return [data]

    def gather_texts(self, text: str) -> list[str]:
        """The text of every rank, by rank. Every rank must call it."""
        data = text.encode()
        lengths = [int.from_bytes(found, "little") for found in self.gather(len(data).to_bytes(8, "little"))]
        found = self.gather(data.ljust(max(lengths), b"\0")) if max(lengths) else [b""] * self.count
        return [padded[:length].decode() for padded, length in zip(found, lengths, strict=True)]

    def leader_decides(self, value: bool) -> bool:
        """Rank 0's value, on every rank. Every rank must call it."""
        return self.gather(bytes([value]))[0] == b"\1"

    def all(self, value: bool) -> bool:
        """Whether the value is true on every rank. Every rank must call it."""
        return all(found == b"\1" for found in self.gather(bytes([value])))

    def first_of(self, text: str) -> str:
        """The first text, by rank, that is not empty. Every rank must call it."""
        return next((found for found in self.gather_texts(text) if found), "")

    def limit_waiting(self, seconds: float) -> None:
        """Let no collective wait for another rank any longer than this."""

    @property
    def can_break_off(self) -> bool:
        """Whether collectives that wait for another rank can be ended from another thread."""
        return False

    def break_off(self) -> None:
        """End the collectives that wait for the accelerator of another rank: the calls that wait for them raise.

        This call itself may take as long as a collective.
        """

    def close(self) -> None:
        """Leave the group."""


class TorchRanks(Ranks):
    """Processes that torchrun started. Their process group is a recipe's: torch's default one."""

    def __init__(self, device: torch.device, *, wait_seconds: float) -> None:
        """Wait for the other ranks. `wait_seconds` is the timeout for a rank, here and in every collective."""
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.wait_seconds = wait_seconds
        self._is_on_host = device.type == "cpu"
        # Otherwise, if one rank fails, NCCL's own watchdog ends every healthy rank before any rank could say why.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._join(device)

    def _join(self, device: torch.device) -> None:
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=timedelta(seconds=self.wait_seconds))

    def gather(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._all_gather(found, mine)
        return [bytes(tensor.numpy()) for tensor in found]

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        dist.all_gather(found, mine)

    def limit_waiting(self, seconds: float) -> None:
        """Apply the limit also to process groups that the user's code made, whose default is half an hour."""
        for group in self._keep_groups():
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)

    def _keep_groups(self) -> list[Any]:
        """Keep all process groups that there are now, and return them."""
        groups = list(distributed_c10d._world.pg_map)  # torch has no public way to list them.
        _kept.update(groups)
        return groups

    @property
    def can_break_off(self) -> bool:
        # Gloo, on the host, notices by itself when a rank is gone; its waiting cannot be ended from outside.
        return not self._is_on_host and dist.is_initialized()

    def break_off(self) -> None:
        try:
            distributed_c10d._abort_process_group()
        except (RuntimeError, ValueError) as error:
            log.warning("the groups of the ranks could not be aborted reason=%s", error)

    def close(self) -> None:
        if dist.is_initialized():
            self._keep_groups()
            dist.destroy_process_group()


class RanksOfProgram(TorchRanks):
    """Ranks of a program, with a group of their own: the program makes and destroys torch's default group itself."""

    def _join(self, device: torch.device) -> None:
        store = distributed_c10d.PrefixStore("segue/ranks", connected(wait_seconds=self.wait_seconds))
        timeout = timedelta(seconds=self.wait_seconds)
        self._group: Any = distributed_c10d.ProcessGroupGloo(store, self.rank, self.count, timeout)

    def limit_waiting(self, seconds: float) -> None:
        super().limit_waiting(seconds)
        self._group._set_default_timeout(timedelta(seconds=seconds))

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        self._group.allgather([found], [mine]).wait()

    def close(self) -> None:
        # All groups end with the process.
        self._keep_groups()
        _kept.add(self._group)


def is_one_of_several() -> bool:
    """Whether this process was started as one of an attempt's ranks."""
    return RANKS_VARIABLE in os.environ


def connected(*, wait_seconds: float) -> Any:
    """A connection of its own to the key-value store that torchrun hosts for the ranks."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=wait_seconds),
    )
