"""The server of a fake Google Cloud Storage: tokens for a service account, and both APIs to those who have one."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.clouds.gcs import answers, json_api
from tests.support.clouds.gcs.buckets import NO_RANGE, Buckets, Object, Refusal
from tests.support.clouds.gcs.tokens import Tokens


class FakeGcs(ThreadingHTTPServer):
    """Serves until the block of `serving` ends. Its buckets can be looked into, and it can be told to fail."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets = Buckets()
        self.tokens = Tokens(f"{self.url}/token")
        self.denies_access = False
        """Whether the account has no role in any bucket."""
        self.denied_methods: set[str] = set()
        """Methods of requests for which the account has no right."""
        self.page = 1000
        """Entries of a page of a listing."""
        self.requests: list[str] = []
        """Method and path of each request, in order."""
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._lost_answers = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fail_next(self, count: int, *, of: str = "") -> None:
        """Answer 503 to the next requests whose method and path begin so."""
        with self._lock:
            self._failures[of] = count

    def lose_answers(self, count: int) -> None:
        """Carry the next puts of objects out, and answer 503 to them."""
        self._lost_answers = count

    def is_answer_lost(self) -> bool:
        """Whether the put that was just carried out is one of those."""
        with self._lock:
            self._lost_answers -= 1
            return self._lost_answers >= 0

    def must_fail(self, request: str) -> bool:
        """Note a request; whether it is one of those that fail."""
        with self._lock:
            self.requests.append(request)
            for start, count in self._failures.items():
                if request.startswith(start) and count > 0:
                    self._failures[start] = count - 1
                    return True
        return False

    def write_key(self, path: Path) -> Path:
        """Write a key file of the service account, as the cloud's console gives it."""
        path.write_text(json.dumps(self.tokens.key()))
        return path

    @contextmanager
    def serving(self) -> Iterator[FakeGcs]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: FakeGcs

    def do(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.bucket, _, self.key = (unquote(part) for part in parts.path.lstrip("/").partition("/"))
        try:
            if self.server.must_fail(f"{self.command} {parts.path}"):
                raise Refusal(503, "ServiceUnavailable")
            if parts.path == "/token":
                self._answer(200, self.server.tokens.issue(self.body), kind="application/json")
            else:
                self._authorize()
                self._serve(parts.path)
        except Refusal as refusal:
            if json_api.is_for(parts.path):
                self._answer(refusal.status, json_api.error(refusal.status, refusal.code), kind="application/json")
            else:
                self._answer(refusal.status, answers.error(refusal.code, quoting=self.path))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do

    def _serve(self, path: str) -> None:
        if not json_api.is_for(path):
            (self._object if self.key else self._bucket)()
            return
        self.bucket, self.key = json_api.names(path)
        buckets = self.server.buckets
        if path.startswith(json_api.MEDIA):
            self._read(buckets.get(self.bucket, self.key))
        elif self.key:
            facts = json_api.facts(self.bucket, self.key, buckets.get(self.bucket, self.key))
            self._answer(200, facts, kind="application/json")
        else:
            page = json_api.listing(buckets, self.bucket, self.query, most=self.server.page)
            self._answer(200, page, kind="application/json")

    def _authorize(self) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if not scheme:
            raise Refusal(403, "AccessDenied")
        if not self.server.tokens.is_valid(token):
            raise Refusal(401, "AuthenticationRequired")
        if self.server.denies_access or self.command in self.server.denied_methods:
            raise Refusal(403, "AccessDenied")

    def _bucket(self) -> None:
        if self.command != "GET":
            raise Refusal(405, "MethodNotAllowed")
        self._answer(200, self._uploads() if "uploads" in self.query else self._listing())

    def _uploads(self) -> bytes:
        after, most = (self.query.get("key-marker", ""), self.query.get("upload-id-marker", "")), self.server.page
        prefix = self.query.get("prefix", "")
        found = self.server.buckets.uploads(self.bucket, prefix=prefix, after=after, most=most)
        return answers.uploads(found[:most], is_truncated=len(found) > most)

    def _listing(self) -> bytes:
        after = max(self.query.get("continuation-token", ""), self.query.get("start-after", ""))
        page = self.server.buckets.list(
            self.bucket,
            prefix=self.query.get("prefix", ""),
            delimiter=self.query.get("delimiter", ""),
            after=after,
            most=min(int(self.query.get("max-keys", self.server.page)), self.server.page),
        )
        return answers.listing(self.bucket, page)

    def _object(self) -> None:
        buckets, upload_id = self.server.buckets, self.query.get("uploadId")
        match self.command:
            case "GET" | "HEAD":
                self._read(buckets.get(self.bucket, self.key))
            case "PUT" if upload_id is not None:
                buckets.add_part(self.bucket, upload_id, int(self.query["partNumber"]), self.body)
                self._answer(200, ETag='"a-part"')
            case "PUT":
                condition = self.headers.get("x-goog-if-generation-match")
                expected = None if condition is None else int(condition)
                put = buckets.put(self.bucket, self.key, self.body, if_generation=expected)
                if self.server.is_answer_lost():
                    raise Refusal(503, "ServiceUnavailable")
                self._answer(200, **_facts(put))
            case "POST" if upload_id is not None:
                whole = buckets.complete(self.bucket, upload_id)
                self._answer(200, answers.completed(whole), **_facts(whole))
            case "POST":
                self._answer(200, answers.begun(self.bucket, self.key, buckets.begin(self.bucket, self.key)))
            case "DELETE" if upload_id is not None:
                buckets.abort(self.bucket, upload_id)
                self._answer(204)
            case _:
                buckets.delete(self.bucket, self.key)
                self._answer(204)

    def _read(self, found: Object) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, found.data, **_facts(found))
            return
        start, size = int(wanted[1]), len(found.data)
        stop = min(int(wanted[2]) + 1, size) if wanted[2] else size
        if start >= size:
            raise Refusal(*NO_RANGE)
        facts = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} | _facts(found)
        self._answer(206, found.data[start:stop], **facts)

    def _answer(self, status: int, body: bytes = b"", *, kind: str = "application/xml", **headers: str) -> None:
        self.send_response_only(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


def _facts(found: Object) -> dict[str, str]:
    return {
        "ETag": found.etag,
        "Last-Modified": formatdate(found.changed_at, usegmt=True),
        "x-goog-generation": str(found.generation),
    }
