"""What is signed: the bytes too where somebody on the way could change them."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from segue.stores.s3 import S3Store, is_payload_exposed


@pytest.mark.parametrize(
    ("endpoint_url", "exposed"),
    [
        (None, False),
        ("https://minio.example:9000", False),
        ("http://minio.example:9000", True),
        ("http://10.0.0.7:9000", True),
        ("http://127.0.0.1:9000", False),
        ("http://[::1]:9000", False),
        ("http://localhost", False),
        ("http://localhost.example", True),
    ],
)
def test_bytes_are_signed_where_they_travel_in_the_clear(endpoint_url, exposed):
    assert is_payload_exposed(endpoint_url) is exposed


@pytest.mark.parametrize(
    ("exposed", "expected"), [(False, "UNSIGNED-PAYLOAD"), (True, hashlib.sha256(b"some bytes").hexdigest())]
)
def test_the_request_says_so(monkeypatch, exposed, expected):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setattr("segue.stores.s3.is_payload_exposed", lambda url: exposed)
    seen = []

    class Bucket(BaseHTTPRequestHandler):
        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["x-amz-content-sha256"])
            self.send_response(200)
            self.send_header("ETag", '"made-up"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return

    server = HTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        S3Store(bucket="made-up", endpoint_url=f"http://127.0.0.1:{server.server_port}").put("key", b"some bytes")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen == [expected]
