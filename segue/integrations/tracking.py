"""Runs the trackers of a run in the run's parent.

The parent opens the trackers before it buys capacity, and runs each tracker in a separate thread.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from segue.clock import SystemClock
from segue.credentials import redacted
from segue.errors import SegueError, SpecError, TrackerError
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.spec.trackers import TRACKERS, TrackerOptions

if TYPE_CHECKING:  # Every parent imports this file, but only few runs have a tracker.
    from segue.integrations.mirror import Mirror
    from segue.integrations.tracker import Tracker

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
END_SECONDS = 120.0
"""Maximum number of seconds for which a run that ends waits for its trackers."""
_RETRY_SECONDS = 2.0


@contextmanager
def tracking(
    spec: RunSpec,
    trackers: Mapping[str, Tracker],
    *,
    every_seconds: float = EVERY_SECONDS,
    end_seconds: float = END_SECONDS,
) -> Iterator[None]:
    """While the block runs, send the steps of the run to its trackers.

    When the block ends, segue sends the remaining steps. If the run has ended, segue also sends its end. After an
    exception, the block does not wait, and the process that continues the run sends the remaining steps. If a tracker
    fails or hangs, segue logs the failure, and the run continues. `segue track RUN` sends the missing steps.
    """
    if not trackers:
        yield
        return
    from segue.integrations.mirror import Mirror

    feeds = [
        _Feed(name, Mirror(open_log(spec), tracker), every_seconds=every_seconds) for name, tracker in trackers.items()
    ]
    for feed in feeds:
        feed.start()
    try:
        yield
    except BaseException:
        for feed in feeds:
            feed.give_up()
        raise
    for feed in feeds:
        feed.finish()
    clock = SystemClock()
    give_up_at = clock.monotonic() + end_seconds
    for feed in feeds:
        feed.join(max(give_up_at - clock.monotonic(), 0.0))


def open_trackers(spec: RunSpec) -> dict[str, Tracker]:
    """Open the trackers of a run, without sending anything to them. Return the trackers by name.

    Raises:
        SpecError: a tracker refuses its options, or cannot be imported.
        MissingExtraError: the package of a tracker is not installed.
    """
    return {name: open_tracker(name, options) for name, options in spec.trackers.items()}


def usable_trackers(spec: RunSpec) -> dict[str, Tracker]:
    """Open the trackers of a run.

    If a tracker cannot be opened, log the error, because a run that has begun must continue.
    """
    found = {}
    for name, options in spec.trackers.items():
        try:
            found[name] = open_tracker(name, options)
        except SegueError as error:
            log.warning("tracker left out name=%s reason=%s", name, error)
    return found


def open_tracker(name: str, options: TrackerOptions) -> Tracker:
    """Open one tracker by its name in a run spec and its options.

    Raises:
        SpecError: the tracker refuses these options, or cannot be imported.
        MissingExtraError: the package of the tracker is not installed.
    """
    factory = _factory(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters)
        raise _refused(name, f"{error}; it takes: {takes}") from None
    try:
        made: Tracker = factory(**options)
    except SegueError:
        raise
    except Exception as error:
        raise _refused(name, f"making it raised {type(error).__name__}: {error}") from error
    missing = [method for method in ("begin", "log", "end") if not callable(getattr(made, method, None))]
    if missing:
        raise _refused(name, f"it has no method {', '.join(missing)}; segue.integrations.tracker describes the three")
    return made


def _factory(name: str) -> Callable[..., Any]:
    module, _, function = TRACKERS.get(name, name).partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise _refused(name, f"it cannot be imported ({error})") from None
    return found


def _refused(name: str, why: str) -> SpecError:
    return SpecError(source="the run spec", problems=(f"trackers.{name}: {why}",))


class _Feed(threading.Thread):
    """Sends steps to one tracker until the block ends.

    The thread is a daemon thread, so that it never keeps a process alive.
    """

    def __init__(self, name: str, mirror: Mirror, *, every_seconds: float) -> None:
        super().__init__(name=f"segue-tracker-{name}", daemon=True)
        self._tracker_name, self._mirror, self._every_seconds = name, mirror, every_seconds
        self._ends, self._is_given_up = threading.Event(), threading.Event()
        self._trouble = ""

    def run(self) -> None:
        while not self._ends.wait(self._every_seconds):
            self._update()
        if not self._is_given_up.is_set():
            self._update()
        while self._trouble and not self._is_given_up.wait(min(self._every_seconds, _RETRY_SECONDS)):
            self._update()

    def finish(self) -> None:
        """Let the thread send the remaining steps. After a failure, the thread retries until `give_up` is called."""
        self._ends.set()

    def give_up(self) -> None:
        """Let the thread end after its current call."""
        self._is_given_up.set()
        self._ends.set()

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        self._is_given_up.set()
        if self.is_alive() or self._trouble:
            log.warning(
                "tracker is incomplete name=%s sent_step=%d reason=%s Fix: run `segue track %s` when it answers.",
                self._tracker_name,
                self._mirror.sent_step,
                self._trouble or "it does not answer",
                self._mirror.run_id,
            )

    def _update(self) -> None:
        try:
            self._mirror.update()
        except Exception as error:  # A tracker's client may raise any exception; the run continues.
            trouble = redacted(f"{type(error).__name__}: {error}")
            if trouble != self._trouble:
                log.warning("tracker failed, retrying later name=%s reason=%s", self._tracker_name, trouble)
            self._trouble = trouble
        else:
            self._trouble = ""


def send(runlog: RunLog, tracker: Tracker) -> int:
    """Send the missing steps of a run to a tracker now. Return the newest step in the tracker.

    Raises:
        TrackerError: the tracker failed.
        StoreReadError: the store could not be read.
    """
    from segue.integrations.mirror import Mirror

    mirror = Mirror(runlog, tracker)
    try:
        mirror.update()
    except SegueError:
        raise
    except Exception as error:
        raise TrackerError(sent_step=mirror.sent_step, why=redacted(f"{type(error).__name__}: {error}")) from error
    return mirror.sent_step
