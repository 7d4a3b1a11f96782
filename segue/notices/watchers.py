"""Watchers: sources of notices that are polled, each in its own thread and with its own period.

`watchers_of` is the list of all watchers. A slow source delays neither another source nor a heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from segue.notices.board import NoticeBoard
from segue.notices.file import FileWatcher
from segue.notices.orphan import OrphanWatcher
from segue.notices.recall import RecallWatcher
from segue.process import ProcessRef
from segue.spec import RunSpec
from segue.stores.base import Store

log = logging.getLogger(__name__)

_LOCAL_PERIOD_SECONDS = 1.0
"""Longest period of a source on this machine."""
_END_SECONDS = 1.0
"""How long an attempt that ends waits for a source that is being polled."""


class Source(Protocol):
    """A source of notices that is polled."""

    def poll(self, board: NoticeBoard) -> None:
        """Check once, and leave a notice if there is one. May raise: the next poll follows after the period."""
        ...


@dataclass(frozen=True)
class Watcher:
    """A source and the period at which it is polled."""

    name: str
    source: Source
    period_seconds: float


def watchers_of(spec: RunSpec, store: Store, *, attempt_id: str, owner: ProcessRef | None) -> list[Watcher]:
    """The watchers of one attempt, according to its run spec."""
    beat = spec.liveness.heartbeat_seconds
    local = min(beat, _LOCAL_PERIOD_SECONDS)
    watchers = [
        Watcher("recall", RecallWatcher(store, run_id=spec.run_id, attempt_id=attempt_id), beat),
        Watcher("orphan", OrphanWatcher(owner), local),
    ]
    if spec.liveness.notice_file is not None:
        file = FileWatcher(Path(spec.liveness.notice_file), grace_seconds=spec.grace_seconds)
        watchers.append(Watcher("file", file, local))
    return watchers


@contextmanager
def watching(watchers: Iterable[Watcher], board: NoticeBoard) -> Iterator[None]:
    """Poll every watcher until the block ends; a poll that is still running then is waited for briefly."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(watcher, board, stop), name=f"segue-{watcher.name}", daemon=True)
        for watcher in watchers
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(_END_SECONDS)


def _watch(watcher: Watcher, board: NoticeBoard, stop: threading.Event) -> None:
    while True:
        try:
            watcher.source.poll(board)
        except Exception as error:
            # Any exception: a failed poll must not end the thread, or a later notice is missed.
            log.warning("source of notices not read source=%s reason=%s", watcher.name, error)
        if stop.wait(watcher.period_seconds):
            return
