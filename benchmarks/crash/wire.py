"""A proxy to S3 that can hold a request in its middle, so that the sender can be killed at this moment."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote, urlsplit

_HOLD_SECONDS = 30.0


class PutTrap:
    """Catches the first PUT or POST below a prefix when half of its body has been read."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._is_set = True
        self._caught, self._released, self._done = threading.Event(), threading.Event(), threading.Event()
        self._is_late = False

    def has_caught(self) -> bool:
        return self._caught.is_set()

    def release(self, *, is_late: bool) -> None:
        """Release the request. The call returns when the request has arrived or was dropped. A trap without a request
        is removed."""
        self._is_late = is_late
        self._released.set()
        with self._lock:
            self._is_set = False
        if self._caught.is_set():
            self._done.wait(_HOLD_SECONDS)

    def takes(self, method: str, path: str) -> bool:
        """Whether to hold this request. The result is True at most once."""
        if method not in ("PUT", "POST") or self._prefix not in unquote(path):
            return False
        with self._lock:
            is_taken, self._is_set = self._is_set, False
        return is_taken

    def hold(self) -> bool:
        """Block until the request is released. Return whether the rest may still arrive."""
        self._caught.set()
        self._released.wait(_HOLD_SECONDS)
        return self._is_late

    def done(self) -> None:
        self._done.set()


class Wire(ThreadingHTTPServer):
    """Passes requests on to a server."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, onward_url: str) -> None:
        self.onward = urlsplit(onward_url)
        self.trap: PutTrap | None = None
        super().__init__(("127.0.0.1", 0), _Relay)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because senders are killed in the middle of their requests on purpose."""

    @classmethod
    @contextmanager
    def to(cls, onward_url: str) -> Iterator[Self]:
        """A proxy to the server, during the block."""
        with cls(onward_url) as wire:
            thread = threading.Thread(target=wire.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            try:
                yield wire
            finally:
                wire.shutdown()
                thread.join()


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Wire

    def _relay(self) -> None:
        trap = self.server.trap
        if trap is None or not trap.takes(self.command, self.path):
            self._pass_on(self.rfile.read(self._body_bytes))
            return
        try:
            body = self.rfile.read(self._body_bytes // 2)
            if trap.hold():
                # What the kernel had already taken from the sender arrives although the sender is gone.
                body += self.rfile.read(self._body_bytes - len(body))
                if len(body) == self._body_bytes:
                    self._pass_on(body)
        finally:
            self.close_connection = True
            trap.done()

    @property
    def _body_bytes(self) -> int:
        return int(self.headers.get("Content-Length", 0))

    def _pass_on(self, body: bytes) -> None:
        secure = self.server.onward.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        onward = connect(self.server.onward.netloc)
        try:
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            data = answer.read()
        finally:
            onward.close()
        with suppress(OSError):  # The sender may be dead by now.
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            if self.command == "HEAD" or answer.status != http.HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", answer.getheader("Content-Length", str(len(data))))
            self.end_headers()
            self.wfile.write(data)

    def do_GET(self) -> None:
        self._relay()

    def do_HEAD(self) -> None:
        self._relay()

    def do_PUT(self) -> None:
        self._relay()

    def do_POST(self) -> None:
        self._relay()

    def do_DELETE(self) -> None:
        self._relay()

    def log_message(self, *args: object) -> None:
        """Log nothing."""
