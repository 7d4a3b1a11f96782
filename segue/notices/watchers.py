"""Watchers: sources of notices that have to be asked, each in a thread and with a period of its own.

The one list of them is `watchers_of`. A source that answers slowly delays neither another one nor a heartbeat.
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
from segue.spec import RunSpec
from segue.stores.base import Store

log = logging.getLogger(__name__)

_LOCAL_PERIOD_SECONDS = 1.0
"""Between two looks at something on this machine, at most."""
_END_SECONDS = 1.0
"""How long an attempt that ends waits for a source that is being asked."""


class Source(Protocol):
    """Something that has to be asked for notices."""

    def poll(self, board: NoticeBoard) -> None:
        """Look once, and leave a notice if there is one. May raise: it is asked again after its period."""
        ...


@dataclass(frozen=True)
class Watcher:
    """A source and how often it is asked."""

    name: str
    source: Source
    period_seconds: float


def watchers_of(spec: RunSpec, store: Store, *, attempt_id: str, owner_pid: int | None) -> list[Watcher]:
    """The watchers of one attempt, as its run spec asks for them."""
    beat = spec.liveness.heartbeat_seconds
    local = min(beat, _LOCAL_PERIOD_SECONDS)
    watchers = [
        Watcher("recall", RecallWatcher(store, run_id=spec.run_id, attempt_id=attempt_id), beat),
        Watcher("orphan", OrphanWatcher(owner_pid), local),
    ]
    if spec.liveness.notice_file is not None:
        file = FileWatcher(Path(spec.liveness.notice_file), grace_seconds=spec.grace_seconds)
        watchers.append(Watcher("file", file, local))
    return watchers


@contextmanager
def watching(watchers: Iterable[Watcher], board: NoticeBoard) -> Iterator[None]:
    """Ask every watcher until this is left; one that is in the middle of an answer is not waited for long."""
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
            # Whatever it is: a source in trouble must not end its thread, or a later notice goes unseen.
            log.warning("notice not read source=%s reason=%s", watcher.name, error)
        if stop.wait(watcher.period_seconds):
            return
