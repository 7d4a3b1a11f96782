"""Watches flow runs and sends requests in the background, so that the caller never waits for the Prefect API."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound

from segue.errors import OrchestratorError
from segue.prefect.api import is_refusal, quick_client
from segue.prefect.state_words import Word, state_with

log = logging.getLogger(__name__)

Message = Callable[[SyncPrefectClient], object]
"""A request to the API that may be made more than once without harm."""

_RETRY_SECONDS = 2.0
_ASK_SECONDS = 2.0
_AT_ONCE = 200
"""Number of flow runs in one request, which is the server's limit."""


class _Background(ABC):
    """A thread that makes requests to the API, so that no method waits. The thread ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_silent = False

    def _start(self) -> None:
        """Start the thread if it is not running. The caller holds the lock."""
        if self._thread is None:
            # Prefect's settings are in the context of the thread that makes the requests.
            work = copy_context().run
            self._thread = threading.Thread(target=work, args=(self._work,), name=self._name, daemon=True)
            self._thread.start()

    @abstractmethod
    def _work(self) -> None:
        """Make requests. Before it returns, the method sets `_thread` to None, so that `_start` can start the thread
        again.
        """

    def _note_silence(self, error: Exception) -> None:
        if not self._is_silent:
            self._is_silent = True
            log.warning("prefect does not answer reason=%s", type(error).__name__)

    def _note_answer(self) -> None:
        if self._is_silent:
            self._is_silent = False
            log.warning("prefect answers again")


class Messenger(_Background):
    """Watches the states of flow runs, and delivers messages in a separate thread. No method waits for the API.

    The thread ends with the process. After `close`, the thread ends when all messages are delivered.
    """

    def __init__(self) -> None:
        super().__init__("segue-prefect")
        self._watched: set[UUID] = set()
        self._messages: list[Message] = []
        self._refused: OrchestratorError | None = None
        self._is_closed = False

    def state(self, flow_run_id: UUID) -> State | None:
        """Return the last known state of a flow run. Return None before the first answer.

        The first call starts to watch the flow run. A deleted flow run counts as crashed.
        """
        with self._lock:
            if flow_run_id not in self._watched and not self._is_closed:
                self._watched.add(flow_run_id)
                STATES.watch(flow_run_id)
        return STATES.state(flow_run_id)

    def require_accepted(self) -> None:
        """If a message cannot succeed, raise the error of this message.

        Raises:
            OrchestratorError: the error that the message raised.
        """
        if self._refused is not None:
            raise self._refused

    def deliver(self, message: Message) -> None:
        """Call `message` until the call succeeds, the API refuses it, or the flow run of the message was deleted."""
        with self._lock:
            self._messages.append(message)
            self._start()
        self._wake.set()

    def withdraw(self, message: Message) -> None:
        """Drop a message if it is not delivered yet."""
        with self._lock:
            self._messages = [other for other in self._messages if other is not message]

    def close(self) -> None:
        """Stop watching the flow runs. The thread still delivers the remaining messages."""
        with self._lock:
            for flow_run_id in self._watched:
                STATES.forget(flow_run_id)
            self._watched.clear()
            self._is_closed = True
        self._wake.set()

    def _work(self) -> None:
        with quick_client() as client:
            while True:
                self._wake.clear()
                with self._lock:
                    messages = list(self._messages)
                for message in messages:
                    self._try(client, message)
                with self._lock:
                    is_done = not self._messages
                    if self._is_closed and is_done:
                        self._thread = None  # The next message starts a new thread.
                        return
                self._wake.wait(None if is_done else _RETRY_SECONDS)

    def _try(self, client: SyncPrefectClient, message: Message) -> None:
        try:
            message(client)
        except ObjectNotFound:
            log.warning("a message to prefect was dropped because its flow run no longer exists")
        except OrchestratorError as error:
            self._refused = error
        except Exception as error:
            # Catch any exception, because this thread must continue, even if another program answers at the API's
            # address.
            if not is_refusal(error):
                self._note_silence(error)
                return
            log.warning("prefect refused a message reason=%s", error)
        self._note_answer()
        self.withdraw(message)


class StateWatch(_Background):
    """Keeps the states of watched flow runs up to date. No method waits for the API.

    The thread ends with the process, or if no flow run is watched.
    """

    def __init__(self) -> None:
        super().__init__("segue-states")
        self._watchers: Counter[UUID] = Counter()
        self._states: dict[UUID, State | None] = {}

    def watch(self, flow_run_id: UUID) -> None:
        """Start to watch a flow run, with an immediate request. Each call needs one later call of `forget`."""
        with self._lock:
            self._watchers[flow_run_id] += 1
            self._states.setdefault(flow_run_id, None)
            self._start()
        self._wake.set()

    def state(self, flow_run_id: UUID) -> State | None:
        """Return the last known state. Return None before the first answer. A deleted flow run counts as crashed."""
        with self._lock:
            return self._states.get(flow_run_id)

    def forget(self, flow_run_id: UUID) -> None:
        """End one watch of a flow run. If other callers also watch the flow run, its state stays up to date."""
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
            self._note_silence(error)
            return
        self._note_answer()
        with self._lock:
            self._states.update({known: state for known, state in found.items() if known in self._states})


def states_of(client: SyncPrefectClient, flow_run_ids: list[UUID]) -> dict[UUID, State | None]:
    """Return the states of these flow runs. If all flow runs exist, one request is enough."""
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
