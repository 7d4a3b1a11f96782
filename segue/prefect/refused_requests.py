"""Repeats requests that a Prefect server on SQLite refused because of simultaneous writes, without long waits.

Prefect's server reads and then writes in one transaction. If another connection writes between the read and the write,
SQLite refuses the write, and the server answers 503. Nothing was changed, so the same request succeeds a moment later.
But before each repetition Prefect's client waits for 2, 4, 8, 16 or 32 s. If all repeated requests fail, a worker gives
up the flow run.
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
"""Pause in seconds before each repetition. If the last repetition also fails, Prefect's client waits as long as it does
for an overloaded server.
"""
_MAINTENANCE = "Prefect-Maintenance"
"""Header with which a server shows that it refuses requests for some minutes because of maintenance."""

_Retry = Callable[..., Any]
"""Type of Prefect's `_send_with_retry`, through which every request of a client passes."""


def repeat_refused_requests() -> None:
    """Make all Prefect clients of this process repeat refused requests immediately. A repeated call has no effect."""
    for client, wrapped in ((PrefectHttpxAsyncClient, _asynchronous), (PrefectHttpxSyncClient, _synchronous)):
        original: _Retry = client._send_with_retry
        if not hasattr(original, "__wrapped__"):
            repeating = wrapped(original)
            repeating.__wrapped__ = original  # type: ignore[attr-defined]
            client._send_with_retry = repeating  # type: ignore[method-assign]


def is_refused(response: httpx.Response) -> bool:
    """Whether the server refused the request without any change, so that the same request may succeed a moment
    later.
    """
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
