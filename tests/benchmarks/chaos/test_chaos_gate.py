"""The gate in front of a server: it passes, refuses, holds, cuts and slows requests, also those on open connections."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from benchmarks.chaos.gate import OPEN, Gate, Manner


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def gate():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        with Gate(lambda: server.server_port) as gate:
            yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(client, gate, body=b"x"):
    return client.post(gate.url, content=body)


def test_an_open_gate_passes_requests_of_any_size_on_one_connection(gate):
    with httpx.Client() as client:
        for body in (b"small", b"x" * 3_000_000):
            assert post(client, gate, body).content == body


@pytest.mark.parametrize("status", [503, 401, 422])
def test_a_refusing_gate_answers_with_its_status_also_on_a_connection_that_was_open(gate, status):
    with httpx.Client(transport=httpx.HTTPTransport(retries=2)) as client:
        assert post(client, gate).status_code == 200
        gate.behave(Manner(status=status))
        assert answers(client, gate) == status
        gate.behave(OPEN)
        assert answers(client, gate) == 200


def test_a_cut_gate_breaks_connections_and_a_holding_one_answers_nothing(gate):
    with httpx.Client(timeout=0.3) as client:
        gate.behave(Manner(cuts=True))
        with pytest.raises(httpx.TransportError):
            post(client, gate)
        gate.behave(Manner(holds=True))
        with pytest.raises(httpx.TimeoutException):
            post(client, gate)
        gate.behave(OPEN)
        assert answers(client, gate) == 200


def test_a_slow_gate_delays_an_answer_by_both_ways(gate):
    with httpx.Client() as client:
        gate.behave(Manner(delay_seconds=0.2))
        before = time.monotonic()
        assert post(client, gate).status_code == 200
        assert time.monotonic() - before >= 0.4


def test_a_gate_without_a_server_behind_it_breaks_connections():
    with Gate(lambda: 9) as gate, httpx.Client() as client, pytest.raises(httpx.TransportError):
        post(client, gate)


def answers(client, gate):
    """The status of the first request that is answered: a connection that was closed shows only at its next use."""
    for _ in range(20):
        try:
            return post(client, gate).status_code
        except httpx.TransportError:
            time.sleep(0.05)
    return None
