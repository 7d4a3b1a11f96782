"""Servers that answer as no metadata service should: never, slowly, or with nonsense."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ANSWERS = {
    "nothing": b"",
    "no HTTP": b"\x00\xff garbage\r\n\r\n",
    "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 16\r\n\r\n<html>Login</htm",
    "an empty page": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n",
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "an error": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "half an answer": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"action": "termi',
    "too much": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 << 20),
}


@contextmanager
def answering(answer: bytes | None) -> Iterator[dict[str, str]]:
    """A server that sends these bytes to each request and closes; with None it takes requests and never answers.

    Gives the variables with which all three watchers find it.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # The listener is closed at the end.
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                if answer is not None:
                    with suppress(OSError):
                        connection.recv(1 << 16)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
            "GCE_METADATA_HOST": host,
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{host}",
        }
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in held:
            connection.close()
