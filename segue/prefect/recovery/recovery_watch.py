"""Lists the store of a parent in the Prefect Variable of recovery, and tests that recovery reads this store."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient

from segue.clock import Clock
from segue.controller.recovery import ParentHeartbeat
from segue.controller.recovery_looks import SilenceWatch, silence_sentence
from segue.errors import OrchestratorError
from segue.prefect.api import SILENCE, quick_client
from segue.prefect.recovery.dead_parents import server_id
from segue.prefect.recovery.known_stores import KEEPER
from segue.prefect.recovery.schedule import interval_seconds, why_silent
from segue.prefect.ui.announcements import Announcer
from segue.reports.run_events import RECOVERY_SILENT, RunEvent
from segue.runlog.looks import read_look
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import StoreReadError

Logger = logging.Logger | logging.LoggerAdapter[Any]

PERIOD_SECONDS = 30.0
_FIRST_SECONDS = 3.0
"""Seconds before the watch starts, so that the parent first submits its first segment.

If the parent dies before the watch starts, recovery detects this from the state of the flow run.
"""


def recovery_resource_id(store: StoreSpec) -> str:
    """Return the id of the resource for all events about recovery's checks of a store."""
    return f"segue.recovery.{hashlib.sha256(store.model_dump_json().encode()).hexdigest()[:24]}"


class RecoveryWatch:
    """The watch of one parent. The watch runs in a separate thread and does not block the parent."""

    def __init__(
        self,
        store: StoreSpec,
        parent: ParentHeartbeat,
        *,
        clock: Clock,
        logger: Logger,
        flow_run_id: UUID | None,
        show: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """If nothing would start the parent again, `show` gets the reason. If the reason no longer applies, `show` gets
        None.
        """
        self._spec, self._parent, self._clock, self._logger, self._show = store, parent, clock, logger, show
        self._store = open_store(store)
        self._silence = SilenceWatch(self._store, clock=clock)
        self._flow_run_id = flow_run_id
        self._server_id = ""
        self._interval_seconds: float | None = None
        self._unguarded: str | None = None
        self._is_sent = False
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block ends. Outside a flow run, do nothing, because no server could restart the parent."""
        if self._flow_run_id is None:
            yield
            return
        # With this context, log lines of the thread belong to the flow run, and Prefect's settings are known.
        work = copy_context().run
        threading.Thread(target=work, args=(self._work,), name="segue-recovery-watch", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def _work(self) -> None:
        pause_seconds = _FIRST_SECONDS
        with quick_client() as client:
            while not self._over.wait(pause_seconds):
                pause_seconds = PERIOD_SECONDS
                try:
                    self.look(client)
                except Exception as error:
                    # Catch any exception, because this thread must continue even if other programs answer at the
                    # addresses.
                    self._logger.warning(
                        "recovery could not be checked, trying again reason=%s: %s", type(error).__name__, error
                    )

    def look(self, client: SyncPrefectClient) -> None:
        """Update the store's Variable on the server, and test whether recovery has checked the store since the last
        call.
        """
        try:
            KEEPER.keep(client, self._spec, clock=self._clock, period_seconds=PERIOD_SECONDS)
            self._interval_seconds = interval_seconds(client)
            self._server_id = server_id(client)
        except (OrchestratorError, *SILENCE) as error:
            self._logger.debug("could not record the store on the server reason=%s", type(error).__name__)
        try:
            seconds = self._silence.look(interval_seconds=self._interval_seconds)
        except StoreReadError:
            return  # While the store does not answer, recovery cannot record its checks.
        if seconds is None:
            self._end_alarm()
        else:
            self._alarm(client, seconds)
        if not self._over.is_set():
            self._parent.show_guard(server_id=self._server_id, unguarded=self._unguarded)
            self._show(self._unguarded)

    def _alarm(self, client: SyncPrefectClient, seconds: float) -> None:
        why, fix = why_silent(client, now=self._clock.now())
        if self._unguarded is None:
            self._logger.warning("%s; %s. Fix: %s", silence_sentence(seconds), why, fix.rstrip("."))
        self._unguarded = f"{silence_sentence(seconds)}; {why}. Fix: {fix.rstrip('.')}."
        if not self._is_sent:
            self._send(client, seconds)

    def _end_alarm(self) -> None:
        if self._unguarded is not None:
            self._logger.warning("checks by `recover` complete again")
        self._unguarded, self._is_sent = None, False

    def _send(self, client: SyncPrefectClient, seconds: float) -> None:
        """Send one event for each period in which recovery does not check a store. All parents of the store use one
        event id.
        """
        last = read_look(self._store)
        key = f"recovery-silent:{last.look_id if last is not None else 'never'}"
        facts: dict[str, Any] = {"store": self._spec.url, "seconds": round(seconds)}
        assert self._unguarded is not None
        event = RunEvent(RECOVERY_SILENT, key, self._clock.now(), self._unguarded, facts)
        resource = recovery_resource_id(self._spec)
        announcer = Announcer(
            self._spec.url, log_id=resource, flow_run_id=self._flow_run_id, logger=self._logger, resource=resource
        )
        try:
            announcer.announce(client, [event], now=event.at)
        except SILENCE:
            return  # The next check tries again.
        self._is_sent = True
