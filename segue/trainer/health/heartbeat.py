"""The heartbeat of an attempt. During the attempt, a thread regularly overwrites one small object in the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from segue.records import Heartbeat
from segue.runlog import keys
from segue.stores.base import Store

log = logging.getLogger(__name__)


Describe = Callable[[int], Heartbeat]
"""A function that makes the heartbeat with a given counter."""


class HeartbeatThread:
    """A separate thread that writes a heartbeat every `interval_seconds`. The thread is separate, so that a long step
    does not look like a lost attempt."""

    def __init__(
        self,
        store: Store,
        *,
        run_id: str,
        attempt_id: str,
        interval_seconds: float,
        describe: Describe,
    ) -> None:
        self._store, self._key = store, keys.heartbeat_key(run_id, attempt_id)
        self._interval_seconds = interval_seconds
        self.describe = describe
        self._counter = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="segue-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write heartbeats until the block ends."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread and write one last heartbeat."""
        self._stop.set()
        self._thread.join()
        self._beat()

    def _work(self) -> None:
        while True:
            self._beat()
            if self._stop.wait(self._interval_seconds):
                return

    def _beat(self) -> None:
        self._counter += 1
        try:
            beat = self.describe(self._counter)
            self._store.put(self._key, beat.model_dump_json().encode(), durable=False)
        except Exception as error:
            # Catch any exception, because a failed write must not end the thread: a live attempt would be declared
            # lost.
            # Training continues. If the store stays unreachable, the heartbeat timeout expires and the log decides.
            log.warning("heartbeat not written reason=%s", error)
