"""Failures of ranks. The module finds out which rank raised an error, which rank hangs, and which rank has ended.

If a rank raises an error, the rank publishes its ending. The other ranks only see a collective that is broken or takes
too long. Before the other ranks raise an error, they read the published endings and check which processes are alive, so
that every rank reports the same cause.
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
from segue.trainer.ranks.exchange import Presence, SilentStoreError
from segue.user_objects import text_of

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0
"""Seconds that a rank waits for the published endings of the other ranks, after it has noticed the end of the
attempt."""

_SILENT_LOOKS = 240
"""Number of checks without an answer after which the store's machine is considered lost. The 240 checks take two
minutes. Segue counts checks and not seconds, because this process itself may have been suspended."""
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
    """The ending of one rank, in the form in which the rank publishes it."""

    rank: int
    order: int
    is_cause: bool
    """Whether this rank caused the end. The value is False if the rank only noticed that other ranks did not answer."""
    is_code: bool
    """Whether the recipe's code is the cause, and not the store or the machine."""
    type_name: str
    message: str
    traceback: str
    is_transient: bool = False


class CountedNotes(Notes, Protocol):
    """Shared notes with a counter. The counter shows which rank was first."""

    def count(self, key: str) -> int: ...


class RankFailures:
    """One rank's view of the end of an attempt with several ranks."""

    def __init__(
        self, notes: CountedNotes, *, watched: Notes, rank: int, count: int, wait_seconds: float, clock: Clock
    ) -> None:
        """`watched` has the same notes for the watchdog's thread, over a separate connection that never blocks for
        long."""
        self._notes, self._watched, self._clock = notes, watched, clock
        self._rank, self._count, self._wait_seconds = rank, count, wait_seconds
        self.reporter = 0
        """The rank that writes the attempt's report: the first rank that can write the report."""
        self.step = 0
        """The last step that this rank has completed."""
        self.is_broken_off = False
        """Whether this process itself has aborted its collectives. If the value is True, the abort is the cause of
        exceptions in collectives."""
        self._is_settled = self._is_taken_over = False
        self._settling = threading.Lock()
        self._hung: tuple[int, ...] = ()
        self._dead: tuple[int, ...] = ()
        self._silent_looks = 0
        self._presence = Presence(notes, rank=rank, count=count)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A `with` block. If the block raises an exception, publish it to the other ranks. If another rank is the
        cause, raise the error of the other rank instead.

        Raises:
            RankFailedError, HungRankError, RankLostError: raised in place of the exception of a broken collective.
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
        """The error with which another rank has ended the attempt. The result is None without an error, or if the
        training thread already knows the error.

        The watchdog's thread calls this method.
        """
        if self._is_settled:
            return None
        try:
            self._presence.beat(self._watched)
            self._presence.look(self._watched)
            endings, alive = self._look(self._watched)
            gone = [rank for rank, is_alive in alive.items() if not is_alive]
            # If a process has ended without a published ending, it has crashed, or it has left after all work was done.
            dead = tuple(rank for rank in gone if self._watched.get(f"left/{rank}") is None)
        except RuntimeError as error:
            self._silent_looks += 1
            if self._silent_looks < _SILENT_LOOKS or self._is_settled:
                log.debug("the state of the other ranks is unknown error=%s", error)
                return None
            return _store_lost(error)
        self._silent_looks = 0
        has_cause = any(ending.is_cause for ending in endings.values())
        # Keep the ranks that were gone first, because watchdogs end the other ranks a little later. A machine may also
        # answer again.
        self._dead = (self._dead or dead) if dead else ()
        if self._is_settled or not (has_cause or dead):
            return None
        return cause_of(endings, hung=(), silent=self._dead, waited_seconds=self._wait_seconds, step=self.step)

    def take_over(self) -> bool | None:
        """Take over the end of the attempt in a thread that does not train. Return whether this rank must write the
        report.

        Return None if the training thread has noticed the end in the meantime, because the training thread then ends
        the attempt.
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
            log.debug("cannot reach the other ranks or their shared store error=%s", error)
        # The decision uses the ranks that were gone first, because every rank sees the same first ranks. Other ranks
        # end from now on.
        self.reporter = min(rank for rank in range(self._count) if rank not in self._dead) if 0 in self._dead else 0
        return self._rank == self.reporter

    def close(self) -> None:
        """Leave the group, and kill hung ranks on this machine, because hung ranks would delay the next attempt."""
        try:
            self._notes.put(f"left/{self._rank}", "")
        except RuntimeError as error:
            log.debug("cannot reach the other ranks or their shared store error=%s", error)
        if self._rank != self.reporter:
            return
        for rank in self._hung:
            if self._presence.kill(rank, self._notes):
                log.error("killed a hung rank rank=%d", rank)

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
        """Return the exception to raise: `error` itself, or another rank's error that caused `error`."""
        silence = _silence_in(error)
        try:
            own = self._publish(error, is_silence=silence is not None)
            if own.is_cause:
                return _store_lost(silence) if silence is not None else error
            return self._cause_elsewhere()
        except RuntimeError as of_store:
            log.warning("cannot reach the other ranks or their shared store error=%s", of_store)
            # The ranks cannot agree on a rank that reports. If no rank reports, the missing heartbeat shows that all
            # ranks have ended.
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
            # The choice is not simply the first rank with an ending. Ranks check at different times, but all must
            # choose the same rank.
            self.reporter = min(rank for rank, is_alive in alive.items() if is_alive)

    def _look(self, notes: Notes) -> tuple[dict[int, RankEnding], dict[int, bool]]:
        """Return the published endings, and for each rank whether it is alive or has published an ending."""
        ranks = range(self._count)
        # Usually no rank has ended, so one read is enough. Otherwise there is one read for each rank.
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
                # If a rank on another machine hangs, its counter has changed. If the rank is gone, its counter has not
                # changed.
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
    """Return the cause of the attempt's end from the published endings. The function is pure.

    `silent` ranks have published no ending; `hung` ranks are the silent ranks that are alive.
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
        return RankLostError(ranks=dead, why="its process was killed or crashed, or its machine is gone")
    first = min(endings.values(), key=lambda ending: ending.order)
    return RankLostError(ranks=(first.rank,), why=f"the ranks lost contact ({first.message})")


def _store_lost(error: RuntimeError) -> RankLostError:
    return RankLostError(ranks=(0,), why=f"the key-value store of the ranks, on its machine, is gone ({error})")


def is_broken_collective(error: BaseException) -> bool:
    """Whether the error only shows that another rank did not answer, even if the recipe has re-raised it."""
    return any(
        isinstance(seen, dist.DistError) or (isinstance(seen, RuntimeError) and _OF_GLOO.search(str(seen)))
        for seen in _chain(error)
    )


def _silence_in(error: BaseException) -> SilentStoreError | None:
    """Return the `SilentStoreError` in the chain of this error's causes, if there is one."""
    return next((seen for seen in _chain(error) if isinstance(seen, SilentStoreError)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
