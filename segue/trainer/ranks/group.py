"""A group: the ranks of one attempt with what they share, or a process that trains alone."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from segue.checkpoints.saving.ranked_writer import RankedWriter
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.clock import Clock
from segue.trainer.ranks.collectives import Exchange, Ranks, TorchRanks, is_one_of_several
from segue.trainer.ranks.failures import RankFailures


class RankGroup:
    """A process that trains alone."""

    def __init__(self) -> None:
        self.ranks = Ranks()
        self.step = 0
        """The last step that this rank has done."""

    @property
    def reports(self) -> bool:
        """Whether this rank writes the attempt's report."""
        return True

    def shared_failure(self) -> AbstractContextManager[None]:
        """Where what one rank raises ends all of them."""
        return nullcontext()

    def writer(self, inner: ShardWriter) -> ShardWriter:
        """A writer that answers for all ranks."""
        return inner

    def close(self) -> None:
        """Part."""


class SeveralRanks(RankGroup):
    """One of several processes that torchrun started."""

    def __init__(self, device: torch.device, *, wait_seconds: float, clock: Clock) -> None:
        self.ranks = TorchRanks(device, wait_seconds=wait_seconds)
        self._wait_seconds = wait_seconds
        self._failures = RankFailures(
            Exchange(wait_seconds=wait_seconds),
            rank=self.ranks.rank,
            count=self.ranks.count,
            wait_seconds=wait_seconds,
            clock=clock,
        )

    @property
    def step(self) -> int:
        return self._failures.step

    @step.setter
    def step(self, step: int) -> None:
        self._failures.step = step

    @property
    def reports(self) -> bool:
        return self.ranks.rank == self._failures.reporter

    def shared_failure(self) -> AbstractContextManager[None]:
        return self._failures.shared()

    def writer(self, inner: ShardWriter) -> ShardWriter:
        notes = Exchange(wait_seconds=self._wait_seconds)  # Of its own: the writer's thread asks often.
        return RankedWriter(inner, rank=self.ranks.rank, count=self.ranks.count, notes=notes)

    def close(self) -> None:
        self._failures.close()
        self.ranks.close()


def meet(device: torch.device, *, wait_seconds: float, clock: Clock) -> RankGroup:
    """The group this process is in. Blocks until all its ranks are there.

    Raises:
        RuntimeError: they were not within `wait_seconds`.
    """
    return SeveralRanks(device, wait_seconds=wait_seconds, clock=clock) if is_one_of_several() else RankGroup()


def local_rank() -> int | None:
    """Which of the processes on this machine this is; None when it is alone."""
    return int(os.environ["LOCAL_RANK"]) if is_one_of_several() else None
