"""The heartbeat: a thread that overwrites one small object in the store for as long as the attempt lives."""

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
"""Makes the heartbeat of a given counter."""


class HeartbeatThread:
    """Beats every `interval_seconds` from a thread of its own, so that a long step is not mistaken for death."""

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
        """Beat until this is left."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Beat once more, with the last word, and end."""
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
            # Whatever it is: a beat that fails must not end the thread, or a living attempt is taken for dead.
            # Training goes on: if the store stays away, the heartbeat timeout runs out and the log decides.
            log.warning("heartbeat not written reason=%s", error)
