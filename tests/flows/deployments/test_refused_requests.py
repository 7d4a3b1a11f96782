"""Requests that a server on SQLite refused are repeated at once, by every client of the process; others are not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from segue.prefect.api import quick_client
from segue.prefect.refused_requests import PAUSES_SECONDS, is_refused, repeat_refused_requests

LABELS = "/flow_runs/8d0f1d5e-0000-4000-8000-000000000000/labels"


class Refusing(BaseHTTPRequestHandler):
    """Answers 503 until it has refused as often as it is told to, then 204."""

    refusals: ClassVar[int] = 0
    headers_of_refusal: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[bytes]] = []

    def do_PATCH(self) -> None:
        type(self).asked.append(self.rfile.read(int(self.headers["Content-Length"])))
        is_taken = len(self.asked) > self.refusals
        self.send_response(204 if is_taken else 503)
        for name, value in ({} if is_taken else self.headers_of_refusal).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:  # Asked for a CSRF token: it needs none.
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[Refusing]]:
    handler = type("Handler", (Refusing,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{http.server_port}"}):
            yield handler
        http.shutdown()


@pytest.mark.parametrize("refusals", [0, 1, len(PAUSES_SECONDS)])
def test_a_refused_request_of_a_blocking_client_is_repeated_with_its_body(server, refusals):
    server.refusals = refusals
    repeat_refused_requests()
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        assert client.request("PATCH", LABELS, json={"n": 1}).status_code == 204
    assert server.asked == [b'{"n":1}'] * (refusals + 1)


async def ask(refusals: int) -> int:
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        async with get_client() as client:
            return (await client._client.patch(LABELS, json={"n": refusals})).status_code


@pytest.mark.parametrize("refusals", [0, 1, len(PAUSES_SECONDS)])
def test_a_refused_request_of_a_worker_is_repeated(server, refusals):
    server.refusals = refusals
    repeat_refused_requests()
    assert asyncio.run(ask(refusals)) == 204
    assert len(server.asked) == refusals + 1


def test_a_quick_client_repeats_a_refused_request_and_raises_for_a_server_that_refuses_on(server):
    server.refusals = 2
    with quick_client() as client:
        assert client.request("PATCH", LABELS, json={}).status_code == 204
    server.refusals = 100
    with quick_client() as client, pytest.raises(PrefectHTTPStatusError):
        client.request("PATCH", LABELS, json={})
    assert len(server.asked) == 3 + len(PAUSES_SECONDS) + 1


def test_a_server_under_maintenance_is_not_asked_again_at_once():
    said = {"Prefect-Maintenance": "true"}
    assert not is_refused(httpx.Response(503, headers=said))
    assert is_refused(httpx.Response(503))
    assert not is_refused(httpx.Response(502))


def test_the_first_repetition_comes_within_50_ms_and_all_of_them_within_two_seconds():
    assert PAUSES_SECONDS[0] <= 0.05
    assert sum(PAUSES_SECONDS) < 2


PROCESSES = {
    "worker": "from segue.deployments.workers.warm_worker import warm; warm()",
    "engine": "import runpy, sys; runpy.run_module = lambda *a, **k: None; sys.argv = ['engine']\n"
    "from segue.flows import prefect_engine; prefect_engine.start_early = lambda: None; prefect_engine.main()",
}


@pytest.mark.parametrize("process", PROCESSES)
def test_workers_and_engines_repeat_refused_requests(process):
    code = (
        f"{PROCESSES[process]}\nfrom prefect.client.base import PrefectHttpxAsyncClient as C\n"
        "assert hasattr(C._send_with_retry, '__wrapped__')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_calling_it_again_repeats_no_more_often(server):
    server.refusals = 100
    for _ in range(3):
        repeat_refused_requests()
    begun = time.monotonic()
    with quick_client() as client, pytest.raises(PrefectHTTPStatusError):
        client.request("PATCH", LABELS, json={})
    assert len(server.asked) == len(PAUSES_SECONDS) + 1
    assert time.monotonic() - begun >= sum(PAUSES_SECONDS)
