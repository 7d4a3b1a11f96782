"""Asking the Prefect API without ever waiting for it for long: a run must not depend on its answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Crashed

from segue.clock import Clock, SystemClock
from segue.errors import OrchestratorError

log = logging.getLogger(__name__)

SILENCE = (httpx.HTTPError, PrefectHTTPStatusError)
"""Exceptions of a request that was not answered as asked; `require_silence` raises for those that are refusals."""

Message = Callable[[SyncPrefectClient], object]
"""A request to the API that may be made more than once."""

ANSWER_SECONDS = 5.0
"""Longest wait for one answer."""
_ASK_SECONDS = 2.0
_TRANSIENT = (408, 425, 429)


@contextmanager
def quick_client() -> Iterator[SyncPrefectClient]:
    """A client that makes each request once and waits five seconds for its answer.

    Prefect's own client retries for more than a minute, in which nothing else is looked at.
    """
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client,
    ):
        yield client


def is_refusal(error: Exception) -> bool:
    """Whether the API answered and refused, so that asking again does not help."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    status = error.response.status_code
    return 400 <= status < 500 and status not in _TRANSIENT


def require_silence(error: Exception) -> None:
    """Return when the API did not answer, or is overloaded; a retry may help then.

    Raises:
        OrchestratorError: the API refused the request.
    """
    if is_refusal(error):
        raise refusal(error) from None


def refusal(error: Exception) -> OrchestratorError:
    """The error for an API that refused a request, or that does not answer."""
    server = f"the Prefect server at {PREFECT_API_URL.value()}"
    if not is_refusal(error):
        return OrchestratorError(
            what=f"{server} does not answer ({type(error).__name__}).",
            fix="start the Prefect server, or correct PREFECT_API_URL; without it, `segue run` starts a server itself.",
        )
    assert isinstance(error, httpx.HTTPStatusError)
    status = error.response.status_code
    if status in (401, 403):
        what, fix = "refuses access", "set PREFECT_API_KEY or PREFECT_API_AUTH_STRING, or ask for access."
    elif status == httpx.codes.NOT_FOUND:
        what, fix = "has no Prefect API there", "correct PREFECT_API_URL; it usually ends with /api."
    else:
        what, fix = "refused the request", "use a server of the same version as the installed prefect."
    return OrchestratorError(what=f"{server} {what} (HTTP {status}).", fix=fix)


def wait_for_api(*, limit_seconds: float, clock: Clock | None = None) -> bool:
    """Wait until the API answers, before a flow returns: its engine reports the state once. False at the limit."""
    clock = clock or SystemClock()
    give_up_at = clock.monotonic() + limit_seconds
    while True:
        with quick_client() as client:
            problem = client.api_healthcheck()
        if problem is None:
            return True
        if clock.monotonic() > give_up_at:
            return False
        log.warning("waiting for the prefect api reason=%s", type(problem).__name__)
        clock.sleep(_ASK_SECONDS)


def is_cancelled(flow_run_id: UUID) -> bool:
    """Whether a flow run is being cancelled or was; False when the API does not answer. Asks once."""
    try:
        with quick_client() as client:
            state = client.read_flow_run(flow_run_id).state
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("it is not known whether the flow run was cancelled reason=%s", type(error).__name__)
        return False
    return state is not None and is_by_a_person(state)


def is_by_a_person(state: State) -> bool:
    """Whether this state is a cancellation that a person asked for, and not one by a concurrency limit."""
    is_by_limit = "concurrency limit" in (state.message or "").lower()
    return (state.is_cancelling() or state.is_cancelled()) and not is_by_limit


class Messenger:
    """Watches the states of flow runs and delivers messages, in a thread of its own.

    No method waits for the API. The thread ends with the process, or after `close` once all messages are delivered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._states: dict[UUID, State | None] = {}
        self._messages: list[Message] = []
        self._refused: OrchestratorError | None = None
        self._is_closed = self._is_silent = False
        self._thread: threading.Thread | None = None

    def state(self, flow_run_id: UUID) -> State | None:
        """The last known state of a flow run, which is watched from the first call on; None before the first answer.

        A flow run that was deleted counts as crashed.
        """
        with self._lock:
            is_known = flow_run_id in self._states
            state = self._states.setdefault(flow_run_id, None)
            self._start()
        if not is_known:
            self._wake.set()
        return state

    def require_accepted(self) -> None:
        """Refuse to go on after a message that cannot succeed.

        Raises:
            OrchestratorError: as the message raised it.
        """
        if self._refused is not None:
            raise self._refused

    def deliver(self, message: Message) -> None:
        """Call `message` with a client until it succeeds. Dropped when refused, or when its flow run was deleted."""
        with self._lock:
            self._messages.append(message)
            self._start()
        self._wake.set()

    def withdraw(self, message: Message) -> None:
        """Drop a message that was not delivered yet."""
        with self._lock:
            self._messages = [other for other in self._messages if other is not message]

    def close(self) -> None:
        """Watch no longer; messages are still delivered."""
        with self._lock:
            self._states.clear()
            self._is_closed = True
        self._wake.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="segue-prefect", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        with quick_client() as client:
            while True:
                self._wake.clear()
                with self._lock:
                    messages = list(self._messages)
                    watched = [known for known, state in self._states.items() if state is None or not state.is_final()]
                for message in messages:
                    self._try(client, message)
                for flow_run_id in watched:
                    self._ask(client, flow_run_id)
                with self._lock:
                    if self._is_closed and not self._messages:
                        return
                self._wake.wait(_ASK_SECONDS)

    def _try(self, client: SyncPrefectClient, message: Message) -> None:
        try:
            message(client)
        except ObjectNotFound:
            log.warning("a message to prefect was dropped, because its flow run does not exist any more")
        except OrchestratorError as error:
            self._refused = error
        except Exception as error:
            # Any exception: this thread must go on, also when something else answers in the API's place.
            if not is_refusal(error):
                self._note_silence(error)
                return
            log.warning("prefect refused a message reason=%s", error)
        self.withdraw(message)

    def _ask(self, client: SyncPrefectClient, flow_run_id: UUID) -> None:
        try:
            state = client.read_flow_run(flow_run_id).state
        except ObjectNotFound:
            state = Crashed(name="deleted")
        except Exception as error:  # As above.
            self._note_silence(error)
            return
        if self._is_silent:
            self._is_silent = False
            log.warning("prefect answers again")
        with self._lock:
            if flow_run_id in self._states:
                self._states[flow_run_id] = state

    def _note_silence(self, error: Exception) -> None:
        if not self._is_silent:
            self._is_silent = True
            log.warning("prefect does not answer reason=%s", type(error).__name__)
