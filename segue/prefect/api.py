"""Sends requests to the Prefect API. All waits are short, because a run must not depend on the answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import httpx
from prefect.client.base import PrefectResponse
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentFlowRunCreate
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from segue.clock import Clock, SystemClock
from segue.credentials import masked
from segue.errors import OrchestratorError
from segue.prefect.refused_requests import repeat_refused_requests
from segue.prefect.state_words import TAG_START, is_by_a_person, word_of

log = logging.getLogger(__name__)

SILENCE = (httpx.HTTPError, PrefectHTTPStatusError)
"""The exceptions of a request without a usable answer. `require_silence` determines whether such an exception means a
missing answer or a refusal."""

ANSWER_SECONDS = 5.0
"""Longest wait for one answer, in seconds."""
_ASK_SECONDS = 2.0
DEPLOY = (
    "run `prefect --no-prompt deploy --all` in the folder of prefect.yaml (`segue init` writes one), or name another "
    "deployment under [pools] in the run spec."
)
"""The fix if a deployment of a run does not exist."""
_TRANSIENT = (408, 425, 429)
_BUSY = (408, 429, 502, 503)
"""Status codes after which Prefect's client waits at least two seconds, even if the client does not retry."""


@contextmanager
def quick_client() -> Iterator[SyncPrefectClient]:
    """Yield a client that makes each request once, waits at most five seconds, and raises at once if the server is
    busy.

    Prefect's own client retries for more than a minute, which would block the caller. This client repeats a request
    only after a refusal by a server on SQLite, and for at most 1.5 seconds.
    """
    repeat_refused_requests()
    settings = {"timeout": ANSWER_SECONDS, "event_hooks": {"response": [_require_not_busy]}}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings=settings, sync_client=True) as client,
    ):
        yield client


def _require_not_busy(response: httpx.Response) -> None:
    if response.status_code in _BUSY:
        response.read()  # Needed by the error.
        PrefectResponse.from_httpx_response(response).raise_for_status()


def is_refusal(error: Exception) -> bool:
    """Whether the API refused the request. A retry does not help after a refusal."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    status = error.response.status_code
    return 400 <= status < 500 and status not in _TRANSIENT


def require_silence(error: Exception) -> None:
    """Raise an error unless the API did not answer or is overloaded. In these two cases, a retry may help.

    Raises:
        OrchestratorError: the API refused the request.
    """
    if is_refusal(error):
        raise refusal(error) from None


def refusal(error: Exception) -> OrchestratorError:
    """If the API refused a request or does not answer, return the error for the caller to raise."""
    server = f"the Prefect server at {masked(str(PREFECT_API_URL.value()))}"
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


def own_flow_run_id() -> UUID | None:
    """Return the id of the current flow run. Return None outside a flow run."""
    return UUID(str(flow_run.id)) if flow_run.id else None


def read_deployment(client: SyncPrefectClient, name: str, *, fix: str = DEPLOY) -> DeploymentResponse:
    """Return the deployment with this name, in the form FLOW/DEPLOYMENT.

    Raises:
        OrchestratorError: there is no such deployment. The error message ends with `fix`.
    """
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        raise OrchestratorError(what=f"there is no deployment {name!r} on the Prefect server.", fix=fix) from None


def create_flow_run(client: SyncPrefectClient, deployment_id: UUID, **facts: Any) -> UUID:
    """Create a flow run of a deployment, and return its id. Without a state in `facts`, the flow run is due at once.

    Prefect's own method sends a state with the time of this machine's clock. If this machine's clock is ahead, the
    start is delayed. To avoid this delay, this function sends no state, and the server uses its own clock.
    """
    asked = DeploymentFlowRunCreate(**facts).model_dump(mode="json", exclude_unset=True)
    path = {"id": str(deployment_id)}
    response = client.request("POST", "/deployments/{id}/create_flow_run", path_params=path, json=asked)
    return UUID(response.json()["id"])


def wait_for_api(*, limit_seconds: float, clock: Clock | None = None) -> bool:
    """Wait until the API answers. Return False at the time limit.

    Flows call this function before they end, because the engine sends the final state in only one request.
    """
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
    """Whether a flow run is cancelled or being cancelled. The result is False if the API does not answer one
    request.
    """
    try:
        with quick_client() as client:
            state = client.read_flow_run(flow_run_id).state
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("prefect did not say if the flow run was cancelled, continuing reason=%s", type(error).__name__)
        return False
    return state is not None and is_by_a_person(state)


def tagged(flow_run_id: UUID | str | None, state: State[Any]) -> State[Any]:
    """Tag a flow run with the word of its state, if the state has a word. Return the state.

    Lists of flow runs show only tags. If the request fails, the function only logs this, because the state's message
    also has the word.
    """
    word = word_of(state)
    if word is None or not flow_run_id:
        return state
    try:
        with quick_client() as client:
            known = client.read_flow_run(UUID(str(flow_run_id))).tags
            kept = [tag for tag in known if not tag.startswith(TAG_START)]
            client.update_flow_run(UUID(str(flow_run_id)), tags=[*kept, word.tag])
    except (*SILENCE, ObjectNotFound) as error:
        log.info("the flow run could not be tagged reason=%s", type(error).__name__)
    return state
