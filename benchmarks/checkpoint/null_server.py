"""A server that accepts uploads over a part of the S3 protocol, and discards all bytes. If no store is given, the
benchmark uses this server, so that clients are compared and not a server's disk.
"""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from benchmarks.common.child import child_environment

_BUFFER_BYTES = 4 * 1024 * 1024
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@contextmanager
def null_server() -> Iterator[int]:
    """The port of a null server in a separate process. The server ends with the block, or with this process."""
    command = [sys.executable, "-c", "from benchmarks.checkpoint.null_server import serve; serve()"]
    # A session of its own: Ctrl-C goes to the benchmark's main process, which then ends this one in order.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def serve() -> None:
    """The server process: print the port, then serve until standard input ends."""
    server = _NullServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


class _NullServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Discard)
        self.sizes: dict[str, dict[int, int]] = {}
        """Bytes of each part of each object, so that a client can check that the object is complete."""
        self.lock = threading.Lock()
        self.buffer = bytearray(_BUFFER_BYTES)
        """A buffer for received bytes, which are discarded."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error of a client that has closed its connection."""


class _Discard(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _NullServer
    rfile: io.BufferedReader

    def do_PUT(self) -> None:
        size_bytes = self._discard()
        key, query = self._target()
        part = int(query.get("partNumber", ["0"])[0])
        with self.server.lock:
            if part:
                self.server.sizes.setdefault(key, {})[part] = size_bytes
            else:
                self.server.sizes[key] = {0: size_bytes}
        self._answer(200)

    def do_POST(self) -> None:
        self._discard()
        key, query = self._target()
        if "uploadId" in query:
            self._answer(200, "CompleteMultipartUploadResult", f"<Key>{key}</Key><ETag>null</ETag>")
            return
        with self.server.lock:
            self.server.sizes[key] = {}
        self._answer(200, "InitiateMultipartUploadResult", f"<Key>{key}</Key><UploadId>null</UploadId>")

    def do_GET(self) -> None:
        bucket, query = self._target()
        if "uploads" in query:
            self._answer(200, "ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
            return
        prefix = query.get("prefix", [""])[0]
        with self.server.lock:
            sizes = {key: sum(parts.values()) for key, parts in self.server.sizes.items()}
        listed = "".join(
            f"<Contents><Key>{key.removeprefix(f'{bucket}/')}</Key><Size>{size_bytes}</Size></Contents>"
            for key, size_bytes in sorted(sizes.items())
            if key.startswith(f"{bucket}/{prefix}")
        )
        self._answer(200, "ListBucketResult", f"<IsTruncated>false</IsTruncated>{listed}")

    def do_HEAD(self) -> None:
        key, _ = self._target()
        with self.server.lock:
            parts = self.server.sizes.get(key)
            size_bytes = sum(parts.values()) if parts is not None else None
        self.send_response(404 if size_bytes is None else 200)
        self.send_header("Content-Length", str(size_bytes or 0))
        self.send_header("ETag", '"null"')
        self.send_header("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT")
        self.end_headers()

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.sizes.pop(self._target()[0], None)
        self._answer(204)

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return parts.path, parse_qs(parts.query, keep_blank_values=True)

    def _discard(self) -> int:
        left = size_bytes = int(self.headers.get("Content-Length", 0))
        if left:
            # What came along with the headers.
            left -= len(self.rfile.read(min(left, len(self.rfile.peek()))))
        while left:
            # MSG_TRUNC: the kernel drops the bytes instead of copying them, so the client has the cores to itself.
            got = self.connection.recv_into(self.server.buffer, min(left, _BUFFER_BYTES), socket.MSG_TRUNC)
            if not got:
                raise ConnectionError("the client hung up")
            left -= got
        return size_bytes

    def _answer(self, status: int, document: str = "", content: str = "") -> None:
        body = f"{_XML}<{document}>{content}</{document}>".encode() if document else b""
        self.send_response(status)
        self.send_header("ETag", '"null"')
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
