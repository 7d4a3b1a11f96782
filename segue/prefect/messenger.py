"""A messenger that watches flow runs and sends requests in the background, so that the caller never waits for the
Prefect API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound

from segue.errors import OrchestratorError
from segue.prefect.api import is_refusal, quick_client
from segue.prefect.state_watch import STATES

log = logging.getLogger(__name__)

Message = Callable[[SyncPrefectClient], object]
"""A request to the API that may be made more than once."""

_RETRY_SECONDS = 2.0


class Messenger:
    """An object that watches the states of flow runs, and delivers messages in a separate thread.

    No method waits for the API. The thread ends when the process ends. After `close`, the thread also ends when all
    messages are delivered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._watched: set[UUID] = set()
        self._messages: list[Message] = []
        self._refused: OrchestratorError | None = None
        self._is_closed = self._is_silent = False
        self._thread: threading.Thread | None = None

    def state(self, flow_run_id: UUID) -> State | None:
        """The last known state of a flow run; None before the first answer.

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
        """Call `message` with a client, until the call succeeds, the API refuses it, or the flow run of the message was
        deleted."""
        with self._lock:
            self._messages.append(message)
            self._start()
        self._wake.set()

    def withdraw(self, message: Message) -> None:
        """Drop a message if it is not delivered yet."""
        with self._lock:
            self._messages = [other for other in self._messages if other is not message]

    def close(self) -> None:
        """Stop watching the flow runs. The remaining messages are still delivered."""
        with self._lock:
            for flow_run_id in self._watched:
                STATES.forget(flow_run_id)
            self._watched.clear()
            self._is_closed = True
        self._wake.set()

    def _start(self) -> None:
        if self._thread is None:
            # Prefect's settings are in the context of the thread that delivers.
            work = copy_context().run
            self._thread = threading.Thread(target=work, args=(self._work,), name="segue-prefect", daemon=True)
            self._thread.start()

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
        if self._is_silent:
            self._is_silent = False
            log.warning("prefect answers again")
        self.withdraw(message)

    def _note_silence(self, error: Exception) -> None:
        if not self._is_silent:
            self._is_silent = True
            log.warning("prefect does not answer reason=%s", type(error).__name__)
