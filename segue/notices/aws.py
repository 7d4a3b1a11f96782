"""Reads notices of AWS: spot interruptions and rebalance recommendations from the instance metadata service
(IMDSv2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar

from segue.clock import Clock
from segue.errors import MetadataServiceError
from segue.notices.board import NoticeBoard
from segue.notices.metadata_client import LINK_LOCAL, NOT_FOUND, OK, UNAUTHORIZED, MetadataAnswer, MetadataService

REBALANCE = "rebalance"
"""Kind of the hint that AWS may give before an interruption, or without a following interruption."""

_ADDRESS_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DISABLED_VARIABLE = "AWS_EC2_METADATA_DISABLED"
_ACTIONS = frozenset({"stop", "terminate", "hibernate"})
_TOKEN_SECONDS = 21600
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,}")


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Whether these environment variables disable the metadata service for AWS's tools, and therefore for segue."""
    return environ.get(DISABLED_VARIABLE, "").lower() == "true"


def is_hop_limit_exceeded(environ: Mapping[str, str], *, timeout_seconds: float) -> bool | None:
    """Whether AWS's metadata service answers, but its tokens do not arrive.

    If the service is disabled or not present, return None. The hop limit applies only to the answer with a token. Other
    answers reach a container. Source: EC2's user guide, "Configure the instance metadata options",
    `HttpPutResponseHopLimit`.
    """
    if is_disabled(environ):
        return None
    service = MetadataService("AWS", environ.get(_ADDRESS_VARIABLE) or LINK_LOCAL)
    try:
        answer = service.request("/latest/meta-data/", headers={}, timeout_seconds=timeout_seconds)
    except MetadataServiceError:
        return None
    if answer.status not in (OK, UNAUTHORIZED):
        return None  # Other clouds have the same address.
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        service.request("/latest/api/token", method="PUT", headers=lifetime, timeout_seconds=timeout_seconds)
    except MetadataServiceError:
        return True
    return False


class AwsWatcher:
    """Watches the two documents that AWS publishes before it interrupts a spot instance."""

    name: ClassVar[str] = "aws"
    period_seconds: ClassVar[float] = 5.0  # As AWS recommends; a notice comes two minutes ahead.

    def __init__(self, clock: Clock, environ: Mapping[str, str]) -> None:
        """`environ` may contain the variables with which AWS's own tools find the service."""
        self._clock = clock
        self._service = MetadataService("AWS", environ.get(_ADDRESS_VARIABLE) or LINK_LOCAL)
        self._is_disabled = is_disabled(environ)
        self._token: str | None = None
        self._token_at = 0.0
        self._stated: str | None = None
        self._recommended: str | None = None

    def is_here(self, *, timeout_seconds: float) -> bool:
        if self._is_disabled:
            return False
        # Other clouds imitate the paths, but no other cloud has both IMDSv2 and ids of this form.
        answer = self._request_token(timeout_seconds=timeout_seconds)
        if answer.status != OK:
            return False
        found = self._get("/latest/meta-data/instance-id", timeout_seconds=timeout_seconds)
        return found is not None and _INSTANCE_ID.fullmatch(found.text.strip()) is not None

    def zone(self) -> str:
        found = self._get("/latest/meta-data/placement/availability-zone")
        return found.text.strip() if found is not None else ""

    def poll(self, board: NoticeBoard) -> None:
        self._look_for_action(board)
        self._look_for_recommendation(board)

    def _look_for_action(self, board: NoticeBoard) -> None:
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer is None:
            return
        document = self._service.document(answer)
        action, time = document.get("action"), document.get("time")
        if action in _ACTIONS and time != self._stated:
            left = (self._time(answer, time) - self._clock.now()).total_seconds()
            board.restate(self.name, grace_seconds=left)
            self._stated = time

    def _look_for_recommendation(self, board: NoticeBoard) -> None:
        answer = self._get("/latest/meta-data/events/recommendations/rebalance")
        if answer is None:
            return
        time = self._service.document(answer).get("noticeTime")
        if time != self._recommended:
            self._time(answer, time)
            board.hint(REBALANCE)
            self._recommended = time

    def _get(self, path: str, *, timeout_seconds: float = 2.0) -> MetadataAnswer | None:
        """Read a document. If the document does not exist, return None."""
        answer = self._get_with_token(path, timeout_seconds)
        if answer.status == UNAUTHORIZED:
            self._token = None  # The service was restarted, or this machine was resumed on another host.
            answer = self._get_with_token(path, timeout_seconds)
        if answer.status == NOT_FOUND:
            return None
        self._service.require_ok(answer)
        return answer

    def _get_with_token(self, path: str, timeout_seconds: float) -> MetadataAnswer:
        is_old = self._clock.monotonic() - self._token_at > _TOKEN_SECONDS / 2
        if self._token is None or is_old:
            self._service.require_ok(self._request_token(timeout_seconds=timeout_seconds))
        headers = {"X-aws-ec2-metadata-token": self._token or ""}
        return self._service.request(path, headers=headers, timeout_seconds=timeout_seconds)

    def _request_token(self, *, timeout_seconds: float) -> MetadataAnswer:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
        answer = self._service.request(
            "/latest/api/token", method="PUT", headers=lifetime, timeout_seconds=timeout_seconds
        )
        if answer.status == OK:
            self._token, self._token_at = answer.text.strip(), self._clock.monotonic()
        return answer

    def _time(self, answer: MetadataAnswer, text: object) -> datetime:
        try:
            found = datetime.fromisoformat(str(text))
        except ValueError:
            raise self._service.error(answer.url, f"its answer has no valid time: {answer.text[:80]!r}") from None
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
