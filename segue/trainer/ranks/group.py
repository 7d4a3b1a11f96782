"""The rank group: the ranks of one attempt and the objects that they share. A process that trains alone is also a
group."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AbstractContextManager, nullcontext

import torch

from segue.checkpoints.saving.ranked_writer import RankedWriter
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.clock import Clock
from segue.errors import SegueError
from segue.trainer.ranks.collectives import Ranks, RanksOfProgram, TorchRanks, is_one_of_several
from segue.trainer.ranks.exchange import Exchange
from segue.trainer.ranks.rank_failures import RankFailures

log = logging.getLogger(__name__)

_CLOSE_SECONDS, _LOOK_SECONDS = 10.0, 5.0


class RankGroup:
    """The group of a process that trains alone."""

    def __init__(self) -> None:
        self.ranks = Ranks()
        self.step = 0
        """The last step that this rank has completed."""
        self.notes: Exchange | None = None
        """The key-value store that the ranks share; None if this process trains alone."""

    @property
    def reports(self) -> bool:
        """Whether this rank writes the attempt's report."""
        return True

    def shared_failure(self) -> AbstractContextManager[None]:
        """A `with` block. If an exception is raised in this block on one rank, all ranks end."""
        return nullcontext()

    def break_off(self) -> None:
        """Abort the collectives in which this rank waits for the accelerator of another rank.

        Only the first call has an effect. Every call returns immediately.
        """

    def ended_elsewhere(self) -> SegueError | None:
        """The error with which another rank has ended the attempt. The result is None without an error, or if the
        training thread already knows the error."""
        return None

    def take_over(self) -> bool | None:
        """Take over the end of the attempt in a thread that does not train. Return whether this rank must write the
        report.

        Return None if the training thread has noticed the end in the meantime, because the training thread then ends
        the attempt.
        """
        return True

    def writer(self, inner: ShardWriter) -> ShardWriter:
        """Return a writer of checkpoints for all ranks, which uses `inner` on this rank."""
        return inner

    def close(self) -> None:
        """Leave the group, without waiting for a rank that has ended."""


class SeveralRanks(RankGroup):
    """The group of several ranks that torchrun started."""

    def __init__(self, device: torch.device, *, wait_seconds: float, clock: Clock, is_program: bool) -> None:
        self.ranks = (RanksOfProgram if is_program else TorchRanks)(device, wait_seconds=wait_seconds)
        self._wait_seconds = wait_seconds
        self.notes = Exchange(wait_seconds=wait_seconds)
        self._failures = RankFailures(
            self.notes,
            watched=Exchange(wait_seconds=wait_seconds, answer_seconds=_LOOK_SECONDS),
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

    def break_off(self) -> None:
        if self._failures.is_broken_off or not self.ranks.can_break_off:
            return
        self._failures.is_broken_off = True
        log.warning("aborting the collectives of this rank, because another rank does not answer")
        threading.Thread(target=self.ranks.break_off, name="segue-break-off", daemon=True).start()

    def ended_elsewhere(self) -> SegueError | None:
        return self._failures.ended_elsewhere()

    def take_over(self) -> bool | None:
        return self._failures.take_over()

    def writer(self, inner: ShardWriter) -> ShardWriter:
        # The writer has a separate connection, because its thread polls often. The thread may wait as long as a
        # collective, because only a save waits for the thread.
        notes = Exchange(wait_seconds=self._wait_seconds, answer_seconds=self._wait_seconds)
        return RankedWriter(inner, rank=self.ranks.rank, count=self.ranks.count, notes=notes)

    def close(self) -> None:
        self._failures.close()
        leaving = threading.Thread(target=self.ranks.close, name="segue-leave-ranks", daemon=True)
        leaving.start()
        leaving.join(_CLOSE_SECONDS)
        if leaving.is_alive():
            log.warning("the other ranks have not left their group; this process ends without waiting longer")


def meet(device: torch.device, *, wait_seconds: float, clock: Clock, is_program: bool = False) -> RankGroup:
    """Wait until all ranks have joined, and return their group. A program itself creates torch's process groups.

    Raises:
        RuntimeError: a rank did not join within `wait_seconds`.
    """
    if not is_one_of_several():
        return RankGroup()
    return SeveralRanks(device, wait_seconds=wait_seconds, clock=clock, is_program=is_program)


def local_rank() -> int | None:
    """Rank of this process on its machine; None if this process trains alone."""
    return int(os.environ["LOCAL_RANK"]) if is_one_of_several() else None


def local_rank_count() -> int:
    """Number of ranks that torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
