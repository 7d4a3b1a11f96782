"""The rank group: the ranks of one attempt with the objects they share, or a process that trains alone."""

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
        """Last step that this rank has done."""

    @property
    def reports(self) -> bool:
        """Whether this rank writes the attempt's report."""
        return True

    def shared_failure(self) -> AbstractContextManager[None]:
        """A block in which an exception at one rank ends all ranks."""
        return nullcontext()

    def break_off(self) -> None:
        """End the collectives in which this rank waits for an accelerator, once; returns at once."""

    def ended_elsewhere(self) -> SegueError | None:
        """The error that has ended the attempt at another rank, until the training thread here has noticed that."""
        return None

    def take_over(self) -> bool | None:
        """End the attempt from a thread that does not train; return whether this rank has to write the report.

        None: the training thread has noticed meanwhile, and ends the attempt.
        """
        return True

    def writer(self, inner: ShardWriter) -> ShardWriter:
        """The writer of the attempt's checkpoints, over all ranks."""
        return inner

    def close(self) -> None:
        """Leave the group. Does not wait for a rank that is gone."""


class SeveralRanks(RankGroup):
    """The group of several processes that torchrun started."""

    def __init__(self, device: torch.device, *, wait_seconds: float, clock: Clock, is_program: bool) -> None:
        self.ranks = (RanksOfProgram if is_program else TorchRanks)(device, wait_seconds=wait_seconds)
        self._wait_seconds = wait_seconds
        self._failures = RankFailures(
            Exchange(wait_seconds=wait_seconds),
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
        log.warning("the collectives of this rank are aborted, because another one does not answer")
        threading.Thread(target=self.ranks.break_off, name="segue-break-off", daemon=True).start()

    def ended_elsewhere(self) -> SegueError | None:
        return self._failures.ended_elsewhere()

    def take_over(self) -> bool | None:
        return self._failures.take_over()

    def writer(self, inner: ShardWriter) -> ShardWriter:
        # A separate connection: the writer's thread polls often. It may wait as long as a collective does, because only
        # a save waits for it.
        notes = Exchange(wait_seconds=self._wait_seconds, answer_seconds=self._wait_seconds)
        return RankedWriter(inner, rank=self.ranks.rank, count=self.ranks.count, notes=notes)

    def close(self) -> None:
        self._failures.close()
        leaving = threading.Thread(target=self.ranks.close, name="segue-leave-ranks", daemon=True)
        leaving.start()
        leaving.join(_CLOSE_SECONDS)
        if leaving.is_alive():
            log.warning("the other ranks do not leave their group; this process ends without them")


def meet(device: torch.device, *, wait_seconds: float, clock: Clock, is_program: bool = False) -> RankGroup:
    """The group of this process. Blocks until all its ranks have joined. A program makes torch's own groups itself.

    Raises:
        RuntimeError: a rank did not join within `wait_seconds`.
    """
    if not is_one_of_several():
        return RankGroup()
    return SeveralRanks(device, wait_seconds=wait_seconds, clock=clock, is_program=is_program)


def local_rank() -> int | None:
    """This process's rank on its machine; None when it trains alone."""
    return int(os.environ["LOCAL_RANK"]) if is_one_of_several() else None


def local_rank_count() -> int:
    """Ranks on this machine, as torchrun has started them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
