"""The states of flow runs. One thread of the process reads them, with one request for all parents of the process."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound

from segue.prefect.api import quick_client
from segue.prefect.state_words import Word, state_with

log = logging.getLogger(__name__)

_ASK_SECONDS = 2.0
_AT_ONCE = 200
"""Number of flow runs in one request. This number is the server's limit."""


class StateWatch:
    """An object that keeps the states of watched flow runs up to date. No method waits for the API.

    The thread ends if no flow run is watched, or together with the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._watchers: Counter[UUID] = Counter()
        self._states: dict[UUID, State | None] = {}
        self._thread: threading.Thread | None = None
        self._is_silent = False

    def watch(self, flow_run_id: UUID) -> None:
        """Start to watch a flow run, with an immediate request. For each call, there must be one call of `forget`."""
        with self._lock:
            self._watchers[flow_run_id] += 1
            self._states.setdefault(flow_run_id, None)
            if self._thread is None:
                # Prefect's settings are in the context of the thread that asks.
                work = copy_context().run
                self._thread = threading.Thread(target=work, args=(self._work,), name="segue-states", daemon=True)
                self._thread.start()
        self._wake.set()

    def state(self, flow_run_id: UUID) -> State | None:
        """The last known state; None before the first answer. A deleted flow run counts as crashed."""
        with self._lock:
            return self._states.get(flow_run_id)

    def forget(self, flow_run_id: UUID) -> None:
        """Stop watching a flow run, unless another caller still watches it."""
        with self._lock:
            self._watchers[flow_run_id] -= 1
            if self._watchers[flow_run_id] <= 0:
                del self._watchers[flow_run_id]
                self._states.pop(flow_run_id, None)
        self._wake.set()

    def _work(self) -> None:
        with quick_client() as client:
            while True:
                self._wake.clear()
                with self._lock:
                    if not self._states:
                        self._thread = None
                        return
                    open_runs = [
                        known for known, state in self._states.items() if state is None or not state.is_final()
                    ]
                for first in range(0, len(open_runs), _AT_ONCE):
                    self._ask(client, open_runs[first : first + _AT_ONCE])
                self._wake.wait(_ASK_SECONDS)

    def _ask(self, client: SyncPrefectClient, flow_run_ids: list[UUID]) -> None:
        try:
            found = states_of(client, flow_run_ids)
        except Exception as error:
            # Catch any exception, because this thread must continue, even if another program answers at the API's
            # address.
            if not self._is_silent:
                self._is_silent = True
                log.warning("prefect does not answer reason=%s", type(error).__name__)
            return
        if self._is_silent:
            self._is_silent = False
            log.warning("prefect answers again")
        with self._lock:
            self._states.update({known: state for known, state in found.items() if known in self._states})


def states_of(client: SyncPrefectClient, flow_run_ids: list[UUID]) -> dict[UUID, State | None]:
    """The states of these flow runs. If all flow runs exist, one request is enough."""
    found: dict[UUID, State | None] = {}
    if len(flow_run_ids) > 1:
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=flow_run_ids))
        found = {run.id: run.state for run in client.read_flow_runs(flow_run_filter=wanted, limit=_AT_ONCE)}
    for flow_run_id in flow_run_ids:
        if flow_run_id not in found:
            try:
                found[flow_run_id] = client.read_flow_run(flow_run_id).state
            except ObjectNotFound:
                found[flow_run_id] = state_with(Word.DELETED, "its flow run was deleted")
    return found


STATES = StateWatch()
"""The StateWatch of this process."""
