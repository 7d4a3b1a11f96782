"""Reads notices of GCE: preemptions of spot machines, from the metadata server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlencode

from segue.clock import Clock
from segue.notices.board import NoticeBoard
from segue.notices.metadata_client import LINK_LOCAL, OK, MetadataService

_ADDRESS_VARIABLE = "GCE_METADATA_HOST"
_FLAVOR = {"Metadata-Flavor": "Google"}
_GRACE_SECONDS = 30.0
"""Longest time in seconds from the change of `preempted` to the end of the machine."""
_WAIT_SECONDS = 20
"""Seconds for which the server delays its answer while `preempted` does not change."""
_ANSWER_SECONDS = 5.0


class GceWatcher:
    """Waits for a change of the value `preempted`. The server answers immediately after the change."""

    name: ClassVar[str] = "gce"
    period_seconds: ClassVar[float] = 1.0  # A change in between is answered at once, because the etag differs.

    def __init__(self, clock: Clock, environ: Mapping[str, str]) -> None:
        """`environ` may contain the variable with which Google's libraries find the server, as host or host:port."""
        # The server is named by its address, because on other machines the look-up of metadata.google.internal may
        # block for many seconds.
        host = environ.get(_ADDRESS_VARIABLE)
        self._service = MetadataService("GCE", f"http://{host}" if host else LINK_LOCAL)
        self._etag: str | None = None
        self._is_preempted = False

    def is_here(self, *, timeout_seconds: float) -> bool:
        path = "/computeMetadata/v1/instance/id"
        answer = self._service.request(path, headers=_FLAVOR, timeout_seconds=timeout_seconds)
        return answer.status == OK and answer.headers.get("metadata-flavor") == "Google"

    def zone(self) -> str:
        answer = self._service.request("/computeMetadata/v1/instance/zone", headers=_FLAVOR)
        return answer.text.strip().rpartition("/")[2] if answer.status == OK else ""

    def poll(self, board: NoticeBoard) -> None:
        """Read `preempted`. From the second call on, wait up to 20 s for a change."""
        query: dict[str, str | int] = {}
        if self._etag is not None:
            query = {"wait_for_change": "true", "timeout_sec": _WAIT_SECONDS, "last_etag": self._etag}
        path = "/computeMetadata/v1/instance/preempted"
        answer = self._service.request(
            f"{path}?{urlencode(query)}" if query else path,
            headers=_FLAVOR,
            timeout_seconds=_ANSWER_SECONDS + (_WAIT_SECONDS if query else 0),
        )
        self._service.require_ok(answer)
        value = answer.text.strip().upper()
        if value not in {"TRUE", "FALSE"}:
            raise self._service.error(answer.url, f"its answer is neither TRUE nor FALSE: {answer.text[:80]!r}")
        self._etag = answer.headers.get("etag")
        if value == "TRUE" and not self._is_preempted:
            board.leave(self.name, grace_seconds=_GRACE_SECONDS)
            self._is_preempted = True
