"""The clock of the parent that the calling code belongs to: its sleeps end when the parent is asked to end.

`segue serve` gives each of its parents one of its own. A parent in a container gets no signal when its flow run is
cancelled, so every other parent looks at its own state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from uuid import UUID

from segue.tasks.state_watch import STATES
from segue.tasks.state_words import is_by_a_person

from segue.clock import Clock, SystemClock
from segue.controller.ending import EndableClock, Ending, Why
from segue.stores.retry import OUTAGE_SECONDS, patiently

T = TypeVar("T")

_LOOK_SECONDS = 1.0
_CLOCK: ContextVar[Clock | None] = ContextVar("segue_parent_clock", default=None)


def parent_clock() -> Clock:
    """The clock of this parent; the machine's own, unless the parent shares its process with others.

    A context variable, because a flow gets nothing else from who starts it than its parameters, which the server has.
    """
    return _CLOCK.get() or SystemClock()


def as_parent(ask: Callable[[], T], *, what: str) -> T:
    """What `ask` returns, retried by the parent's clock while the store fails; attempts go on training meanwhile.

    Raises:
        StoreReadError, StoreWriteError: it still does after 15 minutes. Recovery then starts the parent again.
    """
    return patiently(ask, what=what, patience_seconds=OUTAGE_SECONDS, clock=parent_clock())


@contextmanager
def with_clock(clock: Clock) -> Iterator[None]:
    """A block in whose flows and tasks `parent_clock` is this one."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)


@contextmanager
def ending_with(flow_run_id: UUID | None) -> Iterator[None]:
    """A block in which the parent's sleeps end with an `EndedError` once a person cancels this flow run.

    A parent in `segue serve` has a clock that does this already.
    """
    if flow_run_id is None or isinstance(parent_clock(), EndableClock):
        yield
        return
    ending, is_over = Ending(), threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            state = STATES.state(flow_run_id)
            if state is not None and is_by_a_person(state):
                ending.request(Why.CANCELLED)
                return

    STATES.watch(flow_run_id)
    threading.Thread(target=look, name="segue-own-state", daemon=True).start()
    try:
        with with_clock(EndableClock(ending)):
            yield
    finally:
        is_over.set()
        STATES.forget(flow_run_id)
