"""Messages to the Prefect API are repeated until it takes them, and end once it refuses them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import prefect
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings

from segue.prefect.api import quick_client
from segue.prefect.messenger import Messenger
from segue.prefect.refused_requests import PAUSES_SECONDS

ANSWER_WITHIN_SECONDS = 30.0


class Api:
    """A server that answers each path with the next of its statuses, and with the last from then on.

    When it refuses, it asks for a pause of an hour, which Prefect's own client would make.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, list[int]] = {}
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                # The client asks for the version, and for a CSRF token, which a server need not have.
                self._answer(200 if self.path.endswith("/version") else 404, json.dumps(prefect.__version__))

            def do_POST(self) -> None:
                api.asked.append(self.path)
                left = api.statuses[self.path]
                self._answer(left.pop(0) if len(left) > 1 else left[0], "{}")

            def _answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status >= 400:
                    self.send_header("Retry-After", "3600")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def was_asked(self, path: str, times: int) -> None:
        give_up_at = time.monotonic() + ANSWER_WITHIN_SECONDS
        while self.asked.count(path) < times:
            assert time.monotonic() < give_up_at, self.asked
            time.sleep(0.05)


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    with temporary_settings({PREFECT_API_URL: api.url}):
        yield api
    api.close()


def message(name: str):
    def ask(client) -> httpx.Response:
        return client.request("POST", "/work_pools/{name}/get_scheduled_flow_runs", path_params={"name": name})

    return ask


def path_of(name: str) -> str:
    return f"/api/work_pools/{name}/get_scheduled_flow_runs"


# A server on SQLite refuses with 503 what succeeds a moment later.
@pytest.mark.parametrize(("status", "times"), [(408, 1), (429, 1), (502, 1), (503, 1 + len(PAUSES_SECONDS))])
def test_a_request_to_a_busy_server_raises_without_the_pause_it_asks_for(api, status, times):
    api.statuses = {path_of("busy"): [status]}
    with quick_client() as client, pytest.raises(PrefectHTTPStatusError) as refused:
        message("busy")(client)
    assert refused.value.response.status_code == status
    assert api.asked == [path_of("busy")] * times


def test_a_message_is_repeated_until_it_is_taken_and_never_after(api):
    api.statuses = {path_of("cancel"): [503, 503, 200], path_of("other"): [200]}
    messenger = Messenger()
    messenger.deliver(message("cancel"))
    messenger.close()  # What was not delivered yet still is.
    api.was_asked(path_of("cancel"), 3)
    messenger.deliver(message("other"))
    api.was_asked(path_of("other"), 1)
    assert api.asked.count(path_of("cancel")) == 3


def test_a_message_that_is_refused_is_dropped_and_the_next_is_delivered(api):
    api.statuses = {path_of("forbidden"): [403], path_of("busy"): [503, 200]}
    messenger = Messenger()
    messenger.deliver(message("forbidden"))
    messenger.deliver(message("busy"))
    api.was_asked(path_of("busy"), 2)
    assert api.asked.count(path_of("forbidden")) == 1


def test_a_withdrawn_message_is_not_repeated(api):
    api.statuses = {path_of("old"): [502], path_of("new"): [502, 502, 200]}
    messenger = Messenger()
    withdrawn = message("old")
    messenger.deliver(withdrawn)
    api.was_asked(path_of("old"), 1)
    messenger.withdraw(withdrawn)
    asked = api.asked.count(path_of("old"))
    messenger.deliver(message("new"))
    api.was_asked(path_of("new"), 3)
    assert api.asked.count(path_of("old")) <= asked + 1  # One repetition may have been on its way.
