"""Fake metadata services of AWS, GCE and Azure on loopback, for preemptions in tests and demos.

Each service answers over real HTTP as its provider documents: with tokens, required headers, versions and long polls,
and with 404 if there is no notice. `environment` contains the environment variables by which segue and the providers'
libraries find the service.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from segue.clock import Clock, SystemClock

_NOWHERE = "127.0.0.1:9"
"""An address without a service: the discard port of this machine."""
NO_SERVICE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{_NOWHERE}",
    "GCE_METADATA_HOST": _NOWHERE,
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{_NOWHERE}",
}
"""Environment variables with which a process finds no metadata service."""


class Reply(NamedTuple):
    """An answer of a fake service."""

    status: int
    body: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - a named tuple; never changed


class Request(NamedTuple):
    """A request to a fake service."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """The values of the headers, by header names in lower case."""


class FakeMetadataService:
    """A metadata service on a free port of 127.0.0.1, for tests.

    The service runs until `close`, and is a context manager.
    """

    platform: ClassVar[str]

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._is_closed = False
        self.requests: list[str] = []
        """Method and path of every request so far."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._reply))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """The host and the port of the service, as host:port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables. A process with these variables finds only this service."""
        return NO_SERVICE | self._own_environment()

    def preempt(self) -> None:
        """Announce a preemption of the machine, with the usual notice period of the provider."""
        raise NotImplementedError

    def reset(self) -> None:
        """Act as the service of a new machine without a notice."""
        raise NotImplementedError

    def close(self) -> None:
        """Answer the waiting requests, and stop the service."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_environment(self) -> dict[str, str]:
        raise NotImplementedError

    def _answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def _reply(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(f"{request.method} {request.path}")
            return self._answer(request)


class FakeAws(FakeMetadataService):
    """IMDSv2 of a spot instance. Every document needs a token, and a missing document gives 404."""

    platform = "aws"

    def __init__(self, clock: Clock | None = None) -> None:
        self._tokens: dict[str, float] = {}
        self._documents: dict[str, str] = {}
        super().__init__(clock)

    def interrupt(self, at: datetime, *, action: str = "terminate") -> None:
        """Announce that the instance will be stopped, terminated or hibernated at `at`."""
        self._put("spot/instance-action", {"action": action, "time": _iso(at)})

    def rebalance(self, at: datetime | None = None) -> None:
        """Publish a rebalance recommendation. `at` is its time, by default the current time."""
        self._put("events/recommendations/rebalance", {"noticeTime": _iso(at or self._clock.now())})

    def expire_tokens(self) -> None:
        """From now on, refuse all tokens that the service has issued."""
        with self._changed:
            self._tokens.clear()

    def preempt(self) -> None:
        self.interrupt(self._clock.now() + timedelta(seconds=120))

    def reset(self) -> None:
        with self._changed:
            self._documents.clear()

    def _own_environment(self) -> dict[str, str]:
        return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{self.host}"}

    def _put(self, path: str, document: dict[str, str]) -> None:
        with self._changed:
            self._documents[f"/latest/meta-data/{path}"] = json.dumps(document)

    def _answer(self, request: Request) -> Reply:
        now = self._clock.monotonic()
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            seconds = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if not seconds.isdecimal() or not 1 <= int(seconds) <= 21600:
                return Reply(400)
            token = uuid.uuid4().hex
            self._tokens[token] = now + int(seconds)
            return Reply(200, token)
        if self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""), now) <= now:
            return Reply(401)
        if request.path == "/latest/meta-data/instance-id":
            return Reply(200, "i-0123456789abcdef0")
        if request.path == "/latest/meta-data/placement/availability-zone":
            return Reply(200, "eu-west-1b")
        document = self._documents.get(request.path)
        return Reply(404) if document is None else Reply(200, document, {"Content-Type": "application/json"})


class FakeGce(FakeMetadataService):
    """The metadata server of a spot VM, with the value `preempted` and a long poll by etag."""

    platform = "gce"

    def __init__(self, clock: Clock | None = None) -> None:
        self._is_preempted = False
        self._etag = uuid.uuid4().hex[:16]
        super().__init__(clock)

    def preempt(self) -> None:
        self._set(True)

    def reset(self) -> None:
        self._set(False)

    def _own_environment(self) -> dict[str, str]:
        return {"GCE_METADATA_HOST": self.host}

    def _set(self, is_preempted: bool) -> None:
        with self._changed:
            self._is_preempted, self._etag = is_preempted, uuid.uuid4().hex[:16]
            self._changed.notify_all()

    def _answer(self, request: Request) -> Reply:
        flavor = {"Metadata-Flavor": "Google"}
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(403, headers=flavor)
        if request.path == "/computeMetadata/v1/instance/id":
            return Reply(200, "4520031799277581759", flavor)
        if request.path == "/computeMetadata/v1/instance/zone":
            return Reply(200, "projects/123456789012/zones/europe-west4-a", flavor)
        if request.path != "/computeMetadata/v1/instance/preempted":
            return Reply(404, headers=flavor)
        if request.query.get("wait_for_change") == "true":
            # Without last_etag, the server waits for a change of the current value, like the real server.
            last, seconds = request.query.get("last_etag", self._etag), request.query.get("timeout_sec")
            limit = float(seconds) if seconds else None
            self._changed.wait_for(lambda: self._is_closed or self._etag != last, limit)
        return Reply(200, "TRUE" if self._is_preempted else "FALSE", flavor | {"ETag": self._etag})


class FakeAzure(FakeMetadataService):
    """The instance metadata service of a spot VM, with the scheduled events of the VM."""

    platform = "azure"

    def __init__(self, clock: Clock | None = None, *, name: str = "spot-vm-0") -> None:
        self.name = name
        self._events: dict[str, dict[str, Any]] = {}
        self._incarnation = 1
        super().__init__(clock)

    def schedule(
        self,
        kind: str = "Preempt",
        *,
        not_before: datetime | None = None,
        resources: tuple[str, ...] | None = None,
        event_id: str | None = None,
    ) -> str:
        """Add an event to the list, or change the event with this id. Return the id of the event.

        If `not_before` is None, the list shows that the event has begun. `resources` names the machines of the event.
        If it is None, the event is about this machine.
        """
        event_id = event_id or str(uuid.uuid4()).upper()
        event = {
            "EventId": event_id,
            "EventType": kind,
            "EventStatus": "Scheduled" if not_before else "Started",
            "ResourceType": "VirtualMachine",
            "Resources": list(resources or (self.name,)),
            "NotBefore": format_datetime(not_before.astimezone(UTC), usegmt=True) if not_before else "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        with self._changed:
            self._events[event_id] = event
            self._incarnation += 1
        return event_id

    def withdraw(self, event_id: str) -> None:
        """Remove an event from the list. Azure does this after the event, or if the event is cancelled."""
        with self._changed:
            del self._events[event_id]
            self._incarnation += 1

    def preempt(self) -> None:
        self.schedule(not_before=self._clock.now() + timedelta(seconds=30))

    def reset(self) -> None:
        with self._changed:
            self._events.clear()
            self._incarnation += 1

    def _own_environment(self) -> dict[str, str]:
        return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{self.host}"}

    def _answer(self, request: Request) -> Reply:
        if request.headers.get("metadata") != "true" or "api-version" not in request.query:
            return Reply(400, json.dumps({"error": "Bad request. Required header or api-version is missing"}))
        if request.method != "GET":
            return Reply(405)
        found: dict[str, Any]
        if request.path == "/metadata/instance/compute":
            found = {"name": self.name, "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6", "priority": "Spot"}
            found |= {"location": "westeurope", "zone": "2"}
        elif request.path == "/metadata/scheduledevents":
            found = {"DocumentIncarnation": self._incarnation, "Events": list(self._events.values())}
        else:
            return Reply(404)
        return Reply(200, json.dumps(found), {"Content-Type": "application/json"})


FAKES: dict[str, type[FakeMetadataService]] = {fake.platform: fake for fake in (FakeAws, FakeGce, FakeAzure)}
"""The fake services, by their names in `notices` of a run spec."""


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _handler(reply: Callable[[Request], Reply]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, extra = reply(Request(self.command, parts.path, query, headers))
            try:
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body.encode()))} | extra).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())
            except OSError:
                return  # The client has closed the connection.

        do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Log nothing, because `requests` contains all requests."""

    return Handler
