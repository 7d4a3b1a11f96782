"""Keeps the page, the progress and the events of a run up to date while the segments train or wait.

A separate thread makes the updates. The run does not depend on the thread, and no method waits for Prefect or for the
store.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient

from segue.clock import Clock
from segue.controller.steady_clock import SteadyClock
from segue.errors import StoreError
from segue.metrics.metrics_export import METRICS
from segue.prefect.api import quick_client
from segue.prefect.ui.announcements import Announcer, Logger
from segue.prefect.ui.artifacts import described, page_artifact, picture_of, progress_artifact, share_of, view_of
from segue.reports.page import Picture, RunView, page
from segue.reports.run_events import run_events
from segue.runlog.log import RunLog
from segue.spec import RunSpec

PERIOD_SECONDS = 30.0
"""Shortest time between two refreshes, in seconds."""
_PICTURE_SECONDS, _PICTURE_COST = 60.0, 100.0
"""Shortest time between two plots if only steps are new: in seconds, and as a multiple of the drawing time."""
_END_SECONDS = 5.0
"""Longest wait for the last refresh at the end of a run, in seconds."""
_RETRY_SECONDS = 2.0
_DRAWING_PAUSE = 9.0
"""Shortest pause between two plots of this process, as a multiple of the last drawing time.

With this pause, drawing uses at most a tenth of a core.
"""


class LiveRun:
    """Keeps the page, the progress and the events of one run up to date until the end of its block."""

    def __init__(
        self,
        runlog: RunLog,
        spec: RunSpec,
        *,
        clock: Clock,
        logger: Logger,
        flow_run_id: UUID | None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._logger = logger
        self._runlog, self._spec, self._clock, self._period_seconds = runlog, spec, clock, period_seconds
        self._page = page_artifact(spec, flow_run_id=flow_run_id)
        self._progress = progress_artifact(spec, flow_run_id=flow_run_id)
        self._flow_run_id = flow_run_id
        self._announcer: Announcer | None = None
        self._view: RunView | None = None
        self._failing_since: datetime | None = None
        self._picture = _Picture(clock)
        self._segment: int | None = None
        self._waits: dict[str, str | None] = {"waiting": None, "unguarded": None}
        self._is_silent = False
        self._wake, self._last, self._closed = threading.Event(), threading.Event(), threading.Event()
        # With this context, log lines of the thread belong to the flow run.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="segue-live-run", daemon=True
        )

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Refresh until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self.finish()
            self._closed.set()
            self._wake.set()

    def show(self, waiting: str | None) -> None:
        """Show this text at the next refresh, as the reason why the run waits."""
        self._waits["waiting"] = waiting

    def show_unguarded(self, unguarded: str | None) -> None:
        """Show this text at the next refresh, as the reason why nothing would start a dead parent again."""
        self._waits["unguarded"] = unguarded

    def nudge(self) -> None:
        """Send new events soon. Call this method after each write to the run's log."""
        self._wake.set()

    def finish(self) -> None:
        """Request a last refresh, and wait a few seconds for it. A failed refresh is retried until the end of the
        block.
        """
        self._last.set()
        self._wake.set()
        self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        refreshed_at: float | None = None
        with quick_client() as client:
            while not self._closed.is_set():
                is_last, at = self._last.is_set(), self._clock.monotonic()
                is_due = refreshed_at is None or at - refreshed_at >= self._period_seconds
                refreshed_at = at if is_due else refreshed_at
                is_done = self._try(client, is_due=is_due or is_last)
                if is_last and is_done:
                    return
                self._wake.wait(_RETRY_SECONDS if is_last else self._pause_seconds(refreshed_at))
                self._wake.clear()

    def _pause_seconds(self, refreshed_at: float | None) -> float:
        since = self._clock.monotonic() - refreshed_at if refreshed_at is not None else 0.0
        return max(self._period_seconds - since, 0.05)

    def _try(self, client: SyncPrefectClient, *, is_due: bool) -> bool:
        """Try to refresh the view. Return True if Prefect accepted all updates."""
        try:
            view = self._read()
            self._announce(client, view)
            if is_due:
                METRICS.show(view)
                self._publish(client, view)
        except Exception as error:
            # Catch any exception, because this thread must continue, and must update the page when Prefect answers
            # again.
            if not self._is_silent:
                self._is_silent = True
                self._logger.warning("the run's page could not be refreshed reason=%s: %s", type(error).__name__, error)
            return False
        if self._is_silent:
            self._is_silent = False
            self._logger.warning("the run's page is refreshed again")
        return True

    def _read(self) -> RunView:
        """Return the current view of the run. If the store cannot be read, return the last view, with this problem
        added.
        """
        now = self._clock.now()
        try:
            view = view_of(self._runlog, self._spec, now=now, **self._waits)
            trouble = self._clock.trouble if isinstance(self._clock, SteadyClock) else None
            self._view = replace(view, clock_trouble=trouble)
            self._failing_since = None
        except StoreError as error:
            if self._view is None:
                raise
            self._failing_since = self._failing_since or now
            since = f"{self._failing_since:%H:%M:%S %Z}"
            trouble = f"the parent cannot read the store since {since}: {error}"
            self._view = self._view.at(now, store_trouble=trouble)
        return self._view

    def _announce(self, client: SyncPrefectClient, view: RunView) -> None:
        if self._announcer is None:
            facts: dict[str, Any] = {"log_id": self._runlog.log_id, "flow_run_id": self._flow_run_id}
            self._announcer = Announcer(self._spec.run_id, logger=self._logger, **facts)
        self._announcer.announce(client, run_events(view), now=view.now)

    def _publish(self, client: SyncPrefectClient, view: RunView) -> None:
        plan = view.history.open_plan
        segment = plan.segment if plan is not None else self._segment
        if self._segment not in (None, segment):
            self._page.begin_version()
        self._segment = segment
        # A task publishes the last page, with a new plot.
        picture = self._picture.newest if self._last.is_set() else self._picture.of(self._runlog, view)
        where = f", segment {segment}" if segment is not None else ""
        self._page.write(client, page(view, picture=picture), description=f"Run {self._spec.run_id}{where}")
        self._progress.write(client, share_of(view), description=described(view))


class _Turns:
    """Lets the runs of this process draw their plots one after the other. All plots together use at most a tenth of a
    core."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = -math.inf

    @contextmanager
    def turn(self, clock: Clock) -> Iterator[bool]:
        """A context manager that never waits. It yields True if its block may draw."""
        is_mine = self._lock.acquire(blocking=False)
        started_at = clock.monotonic()
        is_free = is_mine and started_at >= self._free_at
        try:
            yield is_free
        finally:
            if is_free:
                ended_at = clock.monotonic()
                self._free_at = ended_at + _DRAWING_PAUSE * (ended_at - started_at)
            if is_mine:
                self._lock.release()


_TURNS = _Turns()


class _Picture:
    """The plot of a run. The plot is drawn again after new attempts or decisions, and otherwise at long intervals."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[int, int] | None = None
        self._due_at: float | None = None
        self.newest: Picture | None = None

    def of(self, runlog: RunLog, view: RunView) -> Picture | None:
        """Return the newest plot. The first call returns None, because drawing would delay the first segment."""
        known, at = (len(view.history.reports), len(view.history.decisions)), self._clock.monotonic()
        if self._due_at is None:
            self._due_at = at
        elif (known != self._known or at >= self._due_at) and view.store_trouble is None:
            with _TURNS.turn(self._clock) as may_draw:
                if may_draw:  # Otherwise the next refresh tries again.
                    self.newest = picture_of(runlog, now=view.now)
                    took = self._clock.monotonic() - at
                    self._known, self._due_at = known, at + max(_PICTURE_SECONDS, _PICTURE_COST * took)
        return self.newest
