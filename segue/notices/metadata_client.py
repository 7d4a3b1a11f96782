"""A client for the metadata service of a cloud machine: it reads short answers, without proxy and without retry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import urlsplit

from segue.errors import MetadataServiceError
from segue.notices.board import NoticeBoard

LINK_LOCAL = "http://169.254.169.254"
"""Address of the metadata services of AWS, GCE and Azure."""

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
_ANSWER_SECONDS = 2.0
_MOST_BYTES = 1 << 20


class MetadataAnswer(NamedTuple):
    """The answer of a metadata service."""

    url: str
    status: int
    headers: Mapping[str, str]
    """Headers of the answer, with names in lower case."""
    text: str


class MetadataService:
    """The metadata service at one address."""

    def __init__(self, provider: str, base_url: str) -> None:
        self.provider, self.base_url = provider, base_url.rstrip("/")

    def request(
        self, path: str, *, headers: Mapping[str, str], method: str = "GET", timeout_seconds: float = _ANSWER_SECONDS
    ) -> MetadataAnswer:
        """Send one request. `timeout_seconds` limits the connection, and the wait for each part of the answer.

        Raises:
            MetadataServiceError: the service did not answer, or its answer is not HTTP or is longer than 1 MiB.
        """
        url = f"{self.base_url}{path}"
        try:
            connection, target = _connection(url, timeout_seconds)
            try:
                connection.request(method, target, headers=dict(headers))
                response = connection.getresponse()
                body = response.read(_MOST_BYTES + 1)
            finally:
                connection.close()
        except (OSError, ValueError) as error:
            raise self.error(url, str(error) or type(error).__name__) from error
        except HTTPException as error:
            raise self.error(url, f"its answer is not HTTP: {error!r:.120}") from error
        if len(body) > _MOST_BYTES:
            raise self.error(url, f"its answer is longer than {_MOST_BYTES} bytes")
        found = {name.lower(): value for name, value in response.getheaders()}
        return MetadataAnswer(url, response.status, found, body.decode(errors="replace"))

    def document(self, answer: MetadataAnswer) -> dict[str, Any]:
        """Return the JSON object in a successful answer.

        Raises:
            MetadataServiceError: the answer has an error status, or is not a JSON object.
        """
        self.require_ok(answer)
        try:
            found = json.loads(answer.text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self.error(answer.url, f"its answer is not a JSON object: {answer.text[:80]!r}")
        return found

    def require_ok(self, answer: MetadataAnswer) -> None:
        """Raise an error if the answer has an error status.

        Raises:
            MetadataServiceError: the answer has an error status.
        """
        if answer.status != OK:
            raise self.error(answer.url, f"it answered with HTTP status {answer.status}")

    def error(self, url: str, why: str) -> MetadataServiceError:
        return MetadataServiceError(provider=self.provider, url=url, why=why)


class CloudWatcher(Protocol):
    """A source of notices that reads the metadata service of one provider."""

    name: ClassVar[str]
    """Name of the provider in `notices` of the run spec, and kind of its notices."""
    period_seconds: ClassVar[float]

    def is_here(self, *, timeout_seconds: float) -> bool:
        """Whether this provider's service answers on this machine, and not another provider's service.

        Raises:
            MetadataServiceError: no service has answered.
        """
        ...

    def zone(self) -> str:
        """Return the zone of this machine. If the service names no zone, return an empty text.

        Raises:
            MetadataServiceError: the service could not be read.
        """
        ...

    def poll(self, board: NoticeBoard) -> None:
        """Read the service once.

        Raises:
            MetadataServiceError: the service could not be read; try again later.
        """
        ...


def _connection(url: str, timeout_seconds: float) -> tuple[HTTPConnection, str]:
    """Return an unopened connection, and the path to request."""
    # http.client reads no proxy settings: a proxy would answer for its own machine, or not at all.
    parts = urlsplit(url)
    if parts.hostname is None:
        raise ValueError("its address has no host")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return kind(parts.hostname, parts.port, timeout=timeout_seconds), target
