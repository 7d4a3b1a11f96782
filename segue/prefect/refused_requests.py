"""Repeat requests that a Prefect server on SQLite refused because two writes met, without the client's long waits.

Prefect's server reads and then writes in one transaction. If another connection writes in between, SQLite refuses at
once and the server answers 503; nothing was changed, and the same request succeeds a moment later. Prefect's client
waits for 2, 4, 8, 16, 32 s instead, and its worker then gives up the flow run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.exceptions import PrefectHTTPStatusError

PAUSES_SECONDS = (0.02, 0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.4, 0.4)
"""Pauses before each repetition. After the last one, Prefect's client waits as for a server that is overloaded."""
_MAINTENANCE = "Prefect-Maintenance"
"""Header of a server that refuses on purpose, for minutes."""

_Retry = Callable[..., Any]
"""Prefect's `_send_with_retry`: the one place that every request of a client passes."""


def repeat_refused_requests() -> None:
    """Let every Prefect client of this process repeat a refused request at once. Safe to call again."""
    for client, wrapped in ((PrefectHttpxAsyncClient, _asynchronous), (PrefectHttpxSyncClient, _synchronous)):
        original: _Retry = client._send_with_retry
        if not hasattr(original, "__wrapped__"):
            repeating = wrapped(original)
            repeating.__wrapped__ = original  # type: ignore[attr-defined]
            client._send_with_retry = repeating  # type: ignore[method-assign]


def is_refused(response: httpx.Response) -> bool:
    """Whether nothing was done, and the same request may succeed a moment later."""
    return response.status_code == httpx.codes.SERVICE_UNAVAILABLE and response.headers.get(_MAINTENANCE) != "true"


def _asynchronous(original: _Retry) -> _Retry:
    def retry(self: Any, *, send: Callable[..., Awaitable[httpx.Response]], **named: Any) -> Any:
        async def repeated(*args: Any, **kwargs: Any) -> httpx.Response:
            for pause_seconds in PAUSES_SECONDS:
                response = await send(*args, **kwargs)
                if not is_refused(response):
                    return response
                await response.aclose()
                await anyio.sleep(pause_seconds)
            return await send(*args, **kwargs)

        return original(self, send=repeated, **named)

    return retry


def _synchronous(original: _Retry) -> _Retry:
    def retry(self: Any, *, send: Callable[..., httpx.Response], **named: Any) -> Any:
        def repeated(*args: Any, **kwargs: Any) -> httpx.Response:
            for pause_seconds in PAUSES_SECONDS:
                try:
                    response = send(*args, **kwargs)
                except PrefectHTTPStatusError as error:  # Raised by a hook of `quick_client`.
                    if not is_refused(error.response):
                        raise
                else:
                    if not is_refused(response):
                        return response
                    response.close()
                time.sleep(pause_seconds)
            return send(*args, **kwargs)

        return original(self, send=repeated, **named)

    return retry
