"""Polls the sources of notices, each in a separate thread with its own period.

`watchers_of` lists all watchers. A slow source delays neither the other sources nor the heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from segue.clock import Clock
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.notices.metadata_client import CloudWatcher
from segue.notices.platform import cloud_watcher, find_platform
from segue.notices.recall import RecallWatcher
from segue.process import Parent, ProcessRef
from segue.spec import RunSpec
from segue.stores.base import Store

log = logging.getLogger(__name__)


class OrphanWatcher:
    """Detects the end of this process's parent, or the end of the process that started all ranks."""

    def __init__(self, owner: ProcessRef | None = None, *, parent: Parent | None = None) -> None:
        """If the parent may have ended before this call, pass `parent`."""
        self._parent, self._owner = parent or Parent(), owner

    def poll(self, board: NoticeBoard) -> None:
        """Check both processes once. If one has ended, leave a notice."""
        is_owned = self._owner is None or self._owner.is_alive()
        if not self._parent.is_alive() or not is_owned:
            board.leave("orphaned", grace_seconds=NO_KILL_COMING_SECONDS)


class FileWatcher:
    """Watches a path. A file at this path is a notice."""

    def __init__(self, path: Path, *, grace_seconds: float) -> None:
        self._path, self._grace_seconds = path, grace_seconds

    def poll(self, board: NoticeBoard) -> None:
        """Check the path once. If the file exists, leave a notice."""
        if self._path.exists():
            board.leave("file", grace_seconds=self._grace_seconds)


_LOCAL_PERIOD_SECONDS = 1.0
"""Longest period in seconds between two polls of a source on this machine."""
_END_SECONDS = 1.0
"""Seconds for which the end of an attempt waits for an unfinished poll."""


class NoticeSource(Protocol):
    """A source of notices that a watcher polls."""

    def poll(self, board: NoticeBoard) -> None:
        """Check the source once, and leave a notice if there is one.

        If a poll raises an error, the watcher polls again after the period.
        """
        ...


@dataclass(frozen=True)
class Watcher:
    """A source of notices, and the period between two polls."""

    name: str
    source: NoticeSource
    period_seconds: float
    cloud: CloudWatcher | None = None
    """The source, if it is a metadata service."""

    @property
    def is_remote(self) -> bool:
        """Whether a poll may wait long for another machine. The end of an attempt does not wait for polls of other
        machines."""
        return self.cloud is not None


@dataclass(frozen=True)
class Search:
    """A search for a watcher, which runs in the watcher's thread."""

    name: str
    find: Callable[[], Watcher | None]
    is_remote: bool = True


def watchers_of(
    spec: RunSpec,
    store: Store,
    *,
    attempt_id: str,
    owner: ProcessRef | None,
    clock: Clock,
    parent: Parent | None = None,
) -> list[Watcher | Search]:
    """Return the watchers of one attempt, as its run spec requires.

    Signals need no watcher, because their handler leaves the notice.
    """
    beat = spec.liveness.heartbeat_seconds
    local = min(beat, _LOCAL_PERIOD_SECONDS)
    watchers: list[Watcher | Search] = [
        Watcher("recall", RecallWatcher(store, run_id=spec.run_id, attempt_id=attempt_id), beat),
        Watcher("orphan", OrphanWatcher(owner, parent=parent), local),
    ]
    if spec.liveness.notice_file is not None:
        file = FileWatcher(Path(spec.liveness.notice_file), grace_seconds=spec.grace_seconds)
        watchers.append(Watcher("file", file, local))
    if spec.notices is None:
        return [*watchers, Search("platform", partial(_found_here, clock))]
    return [*watchers, *(_of_cloud(cloud_watcher(name, clock)) for name in dict.fromkeys(spec.notices))]


@contextmanager
def watching(watchers: Iterable[Watcher | Search], board: NoticeBoard) -> Iterator[None]:
    """Poll every watcher while the block runs. At the end of the block, wait briefly for unfinished polls."""
    stop = threading.Event()
    threads = {
        threading.Thread(target=_work, args=(watcher, board, stop), name=f"segue-{watcher.name}", daemon=True): watcher
        for watcher in watchers
    }
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread, watcher in threads.items():
            if not watcher.is_remote:
                thread.join(_END_SECONDS)


def _work(watcher: Watcher | Search, board: NoticeBoard, stop: threading.Event) -> None:
    found = watcher.find() if isinstance(watcher, Search) else watcher
    if found is not None and not stop.is_set():
        _watch(found, board, stop)


def _watch(watcher: Watcher, board: NoticeBoard, stop: threading.Event) -> None:
    trouble: str | None = None
    while True:
        before, trouble = trouble, _trouble_of_poll(watcher, board)
        if stop.is_set():
            return
        # Log each cause only once, because a service that does not answer would fill the log.
        if trouble is not None and trouble != before:
            log.warning("could not read a source of notices source=%s reason=%s", watcher.name, trouble)
        elif trouble is None and before is not None:
            log.info("a source of notices can be read again source=%s", watcher.name)
        if stop.wait(watcher.period_seconds):
            return


def _trouble_of_poll(watcher: Watcher, board: NoticeBoard) -> str | None:
    try:
        watcher.source.poll(board)
        if watcher.cloud is not None and board.zone is None:
            board.zone = watcher.cloud.zone()
    except Exception as error:
        # Catch any exception, because a failed poll must not end the thread: a later notice would be missed.
        return str(error)
    return None


def _found_here(clock: Clock) -> Watcher | None:
    found = find_platform(clock)
    return None if found is None else _of_cloud(found)


def _of_cloud(source: CloudWatcher) -> Watcher:
    return Watcher(source.name, source, source.period_seconds, cloud=source)
