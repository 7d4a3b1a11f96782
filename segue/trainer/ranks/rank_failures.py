"""Failures of ranks: which rank raised, which rank hangs, which rank is gone.

A rank that raises publishes how it ends. The other ranks see a broken or overdue collective. Before they raise, they
read what was published and check which processes are alive, so that every rank reports the same cause.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch.distributed as dist

from segue.checkpoints.saving.ranked_writer import Notes
from segue.clock import Clock
from segue.errors import (
    FencedError,
    HungRankError,
    MachineError,
    RankFailedError,
    RankLostError,
    SegueError,
    UnreadRecordError,
    WriterDiedError,
)
from segue.records import Value
from segue.stores.base import StoreReadError, StoreWriteError
from segue.trainer.health.failures import is_transient
from segue.trainer.ranks.exchange import SilentStoreError
from segue.trainer.ranks.presence import Presence
from segue.user_objects import text_of

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0
"""How long ranks that noticed the end of an attempt wait for each other's published ending."""

_SILENT_LOOKS = 240
"""After this many looks without an answer, two minutes, the machine of the store counts as gone. Looks are counted, not
time, because this process itself may have stood still."""
_POLL_SECONDS = 0.05
_OF_GLOO = re.compile("gloo|Application timeout caused pair closure")
_STORAGE_OR_MACHINE = (
    StoreReadError,
    StoreWriteError,
    UnreadRecordError,
    WriterDiedError,
    MachineError,
    FencedError,
)


class RankEnding(Value):
    """What one rank publishes about its end."""

    rank: int
    order: int
    is_cause: bool
    """False when the rank only noticed that others did not answer."""
    is_code: bool
    """Whether the recipe is the cause, and not the store or the machine."""
    type_name: str
    message: str
    traceback: str
    is_transient: bool = False


class CountedNotes(Notes, Protocol):
    """Notes with a counter, which shows which rank was first."""

    def count(self, key: str) -> int: ...


class RankFailures:
    """How an attempt of several ranks ends, as one rank sees it."""

    def __init__(
        self, notes: CountedNotes, *, watched: Notes, rank: int, count: int, wait_seconds: float, clock: Clock
    ) -> None:
        """`watched` are the same notes for the watchdog's thread, over a connection that never lets it wait long."""
        self._notes, self._watched, self._clock = notes, watched, clock
        self._rank, self._count, self._wait_seconds = rank, count, wait_seconds
        self.reporter = 0
        """The rank that writes the attempt's report: the first rank that can."""
        self.step = 0
        """Last step that this rank has done."""
        self.is_broken_off = False
        """Whether this process has ended its collectives itself: their exceptions then show nothing else."""
        self._is_settled = self._is_taken_over = False
        self._settling = threading.Lock()
        self._hung: tuple[int, ...] = ()
        self._dead: tuple[int, ...] = ()
        self._silent_looks = 0
        self._presence = Presence(notes, rank=rank, count=count)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Publish an exception raised here to the other ranks; raise the cause instead if it is at another rank.

        Raises:
            RankFailedError, HungRankError, RankLostError: in place of the exception of a broken collective.
        """
        try:
            yield
        except BaseException as error:
            with self._settling:
                was_settled, self._is_settled = self._is_settled, True
            if self._is_taken_over:
                threading.Event().wait()  # The watchdog is about to end this process, with the report.
            if was_settled:
                raise
            cause = self._cause(error)
            if cause is error:
                raise
            raise cause from error

    def ended_elsewhere(self) -> SegueError | None:
        """The error that has ended the attempt at another rank, until the training thread here has noticed that.

        Called from the watchdog's thread.
        """
        if self._is_settled:
            return None
        try:
            self._presence.beat(self._watched)
            self._presence.look(self._watched)
            endings, alive = self._look(self._watched)
            gone = [rank for rank, is_alive in alive.items() if not is_alive]
            # A process that is gone without an ending has crashed, or has left when all was done.
            dead = tuple(rank for rank in gone if self._watched.get(f"left/{rank}") is None)
        except RuntimeError as error:
            self._silent_looks += 1
            if self._silent_looks < _SILENT_LOOKS or self._is_settled:
                log.debug("nothing is known of the other ranks error=%s", error)
                return None
            return _store_lost(error)
        self._silent_looks = 0
        has_cause = any(ending.is_cause for ending in endings.values())
        # The ranks that were gone first: watchdogs end the others a little later. A machine may answer again.
        self._dead = (self._dead or dead) if dead else ()
        if self._is_settled or not (has_cause or dead):
            return None
        return cause_of(endings, hung=(), silent=self._dead, waited_seconds=self._wait_seconds, step=self.step)

    def take_over(self) -> bool | None:
        """End the attempt from a thread that does not train; return whether this rank has to write the report.

        None: the training thread has noticed meanwhile, and ends the attempt.
        """
        with self._settling:
            if self._is_settled:
                return None
            self._is_settled = self._is_taken_over = True
        ending = RankEnding(
            rank=self._rank,
            order=self._count,
            is_cause=False,
            is_code=False,
            type_name="",
            message="it was ended because another rank had ended",
            traceback="",
        )
        try:
            self._put_ending(ending, self._watched)
        except RuntimeError as error:
            log.debug("the other ranks or the store that they share are gone error=%s", error)
        # Judged by the ranks that were gone first, as every rank sees them: others end from now on.
        self.reporter = min(rank for rank in range(self._count) if rank not in self._dead) if 0 in self._dead else 0
        return self._rank == self.reporter

    def close(self) -> None:
        """Leave, and kill the ranks here that hang: they would keep the machine and delay the next attempt."""
        try:
            self._notes.put(f"left/{self._rank}", "")
        except RuntimeError as error:
            log.debug("the other ranks or the store that they share are gone error=%s", error)
        if self._rank != self.reporter:
            return
        for rank in self._hung:
            if self._presence.kill(rank, self._notes):
                log.error("killed a rank that hangs rank=%d", rank)

    def _publish(self, error: BaseException, *, is_silence: bool) -> RankEnding:
        ending = RankEnding(
            rank=self._rank,
            order=self._notes.count("endings"),
            is_cause=is_silence or not (self.is_broken_off or is_broken_collective(error)),
            is_code=not (is_silence or isinstance(error, _STORAGE_OR_MACHINE)),
            type_name=type(error).__name__,
            message=text_of(error),
            traceback="".join(traceback.format_exception(error)),
            is_transient=is_transient(error),
        )
        self._put_ending(ending, self._notes)
        return ending

    def _put_ending(self, ending: RankEnding, notes: Notes) -> None:
        notes.put(f"ending/{self._rank}", ending.model_dump_json())
        notes.put("ended", "")

    def _cause(self, error: BaseException) -> BaseException:
        """The exception to raise for this one: itself, unless another rank is the cause."""
        silence = _silence_in(error)
        try:
            own = self._publish(error, is_silence=silence is not None)
            if own.is_cause:
                return _store_lost(silence) if silence is not None else error
            return self._cause_elsewhere()
        except RuntimeError as of_store:
            log.warning("the other ranks or the store that they share are gone error=%s", of_store)
            # The ranks cannot agree on a rank that reports. If none reports, the heartbeat shows that all have ended.
            return _store_lost(of_store) if self.is_broken_off or is_broken_collective(error) else error

    def _cause_elsewhere(self) -> SegueError:
        endings, alive = self._wait_for_others()
        silent = [rank for rank in range(self._count) if rank not in endings]
        hung = tuple(rank for rank in silent if alive[rank])
        has_cause = any(ending.is_cause for ending in endings.values())
        if not has_cause and hung and len(hung) == len(silent):
            self.reporter = min(endings)
            self._hung = hung
        else:
            self._choose_reporter(endings, alive)
        return cause_of(endings, hung=hung, silent=tuple(silent), waited_seconds=self._wait_seconds, step=self.step)

    def _choose_reporter(self, endings: Mapping[int, RankEnding], alive: Mapping[int, bool]) -> None:
        has_cause = any(ending.is_cause for ending in endings.values())
        if not has_cause and not alive[0]:
            # Not the first rank with an ending: ranks look at different moments, and all must choose the same one.
            self.reporter = min(rank for rank, is_alive in alive.items() if is_alive)

    def _look(self, notes: Notes) -> tuple[dict[int, RankEnding], dict[int, bool]]:
        """The endings that were published, and which ranks are alive or have published one."""
        ranks = range(self._count)
        # Usually no rank has ended: one read instead of one for each rank.
        texts = {rank: notes.get(f"ending/{rank}") for rank in ranks} if notes.get("ended") is not None else {}
        endings = {rank: RankEnding.model_validate_json(text) for rank, text in texts.items() if text is not None}
        return endings, {rank: rank in endings or self._presence.is_alive(rank, notes) for rank in ranks}

    def _wait_for_others(self) -> tuple[dict[int, RankEnding], dict[int, bool]]:
        give_up_at = self._clock.monotonic() + _SETTLE_SECONDS
        before = self._presence.counters(range(self._count), self._notes)
        while True:
            endings, alive = self._look(self._notes)
            has_cause = any(ending.is_cause for ending in endings.values())
            is_known = has_cause or not all(alive.values()) or len(endings) == self._count
            if is_known:
                return endings, alive
            if self._clock.monotonic() >= give_up_at:
                # On another machine, the counter of a rank that hangs has changed; if the rank is gone, it has not.
                silent = [rank for rank in before if rank not in endings]
                after = self._presence.counters(silent, self._notes)
                return endings, alive | {rank: after[rank] != before[rank] for rank in after}
            self._clock.sleep(_POLL_SECONDS)


def cause_of(
    endings: Mapping[int, RankEnding],
    *,
    hung: tuple[int, ...],
    silent: tuple[int, ...],
    waited_seconds: float,
    step: int,
) -> SegueError:
    """The cause of the attempt's end, from what each rank published. Pure.

    `silent` ranks published nothing; silent ranks that are alive are `hung`.
    """
    causes = sorted((ending for ending in endings.values() if ending.is_cause), key=lambda ending: ending.order)
    if causes:
        first = causes[0]
        if first.is_code:
            return RankFailedError(
                rank=first.rank,
                type_name=first.type_name,
                message=first.message,
                traceback=first.traceback,
                is_transient=first.is_transient,
            )
        return RankLostError(ranks=(first.rank,), why=f"{first.type_name}: {first.message}")
    if hung and hung == silent:
        return HungRankError(ranks=hung, waited_seconds=waited_seconds, step=step)
    if silent:
        dead = tuple(rank for rank in silent if rank not in hung)
        return RankLostError(ranks=dead, why="its process was killed, or crashed, or its machine is gone")
    first = min(endings.values(), key=lambda ending: ending.order)
    return RankLostError(ranks=(first.rank,), why=f"the ranks lost contact ({first.message})")


def _store_lost(error: RuntimeError) -> RankLostError:
    return RankLostError(ranks=(0,), why=f"the store that connects the ranks, on its machine, is gone ({error})")


def is_broken_collective(error: BaseException) -> bool:
    """Whether an error only shows that another rank did not answer, even if a recipe re-raised it."""
    return any(
        isinstance(seen, dist.DistError) or (isinstance(seen, RuntimeError) and _OF_GLOO.search(str(seen)))
        for seen in _chain(error)
    )


def _silence_in(error: BaseException) -> SilentStoreError | None:
    """The silence of the shared store that caused this error, even if something re-raised it."""
    return next((seen for seen in _chain(error) if isinstance(seen, SilentStoreError)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
