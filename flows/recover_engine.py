"""Runs the Prefect engine for a start of `recover`: `python -m segue.flows.recover_engine`.

While no worker runs, scheduled starts accumulate (hundreds in a night), and the next worker begins all these starts
together. If a worker's clock is ahead, the worker also takes starts that are due some minutes later. Each start that
loads Prefect uses several seconds of a core and 150 MB of memory. Therefore the process of a late start exits in this
module, before it loads Prefect. A start that is early by the server's clock waits in this module. The engine runs if
the server does not answer or if no worker has taken a later start. Therefore no due check is lost.
"""

from __future__ import annotations

import base64
import json
import os
import runpy
import ssl
import sys
import threading
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

from segue.process import FLOW_RUN_VARIABLE

_LATE = timedelta(minutes=2)
"""Copy of the value in `segue.prefect.recovery.schedule`, because that module loads Prefect."""
_ANSWER_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 60.0
"""Longest wait in seconds before the next request to the server, because the clock or the start's state may change."""
_TAKEN = ("PENDING", "RUNNING", "COMPLETED")


def main() -> None:
    """Wait until the flow run that the environment names is due, and run it.

    A flow run that a later start has replaced is not run.
    """
    while (seconds := seconds_until_due(os.environ)) > 0:
        threading.Event().wait(min(seconds, _LONGEST_WAIT_SECONDS))
    if not ended_as_late(os.environ):
        sys.argv[1:] = []
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def seconds_until_due(environment: Mapping[str, str]) -> float:
    """Return the seconds from now, on the server's clock, until the time for which this start is scheduled.

    If the start is due or cancelled, or if the time is unknown, return 0.
    """
    try:
        own, now = _Server(environment).ask("GET", f"/flow_runs/{environment[FLOW_RUN_VARIABLE]}")
        due = own.get("expected_start_time")
        if due is None or own.get("state_type") != "PENDING":
            return 0.0
        return max((datetime.fromisoformat(due) - now).total_seconds(), 0.0)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"cannot find out whether this flow run is early: {type(error).__name__}: {error}\n")
        return 0.0


def ended_as_late(environment: Mapping[str, str]) -> bool:
    """If this flow run is late and a worker has taken a later flow run of the deployment, end this flow run.

    Return True if this flow run was ended.
    """
    try:
        server = _Server(environment)
        own, now = server.ask("GET", f"/flow_runs/{environment[FLOW_RUN_VARIABLE]}")
        if not is_late(own, now=now):
            return False
        later, _ = server.ask("POST", "/flow_runs/filter", _later_than(own))
        if not later:
            return False
        state = {"type": "COMPLETED", "message": "this flow run is late; a later flow run makes the check"}
        server.ask("POST", f"/flow_runs/{own['id']}/set_state", {"state": state, "force": True})
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"cannot find out whether this flow run is late: {type(error).__name__}: {error}\n")
        return False
    return True


def is_late(own: Mapping[str, Any], *, now: datetime) -> bool:
    """Whether a flow run is so late, by the server's clock, that a later flow run of the deployment does its work."""
    due = own.get("expected_start_time")
    return bool(own.get("deployment_id")) and due is not None and now - datetime.fromisoformat(due) > _LATE


def _later_than(own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "flow_runs": {
            "expected_start_time": {"after_": own["expected_start_time"]},
            "id": {"not_any_": [own["id"]]},
            "state": {"type": {"any_": list(_TAKEN)}},
            "deployment_id": {"any_": [own["deployment_id"]]},
        },
        "limit": 1,
    }


class _Server:
    """The Prefect server that the environment names, without Prefect's client."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = environment["PREFECT_API_URL"].rstrip("/")
        self._headers = {"content-type": "application/json"}
        self._headers |= json.loads(environment.get("PREFECT_CLIENT_CUSTOM_HEADERS") or "{}")
        key, user = environment.get("PREFECT_API_KEY"), environment.get("PREFECT_API_AUTH_STRING")
        if key or user:
            encoded = base64.b64encode((user or "").encode()).decode()
            self._headers["authorization"] = f"Bearer {key}" if key else f"Basic {encoded}"
        file = environment.get("PREFECT_API_SSL_CERT_FILE")
        self._tls = ssl.create_default_context(cafile=file) if self._url.startswith("https:") else None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[Any, datetime]:
        """Send one request, and return the answer and the server's time."""
        data = json.dumps(body).encode() if body is not None else None
        # The address is Prefect's own setting.
        made = urllib.request.Request(self._url + path, data=data, headers=self._headers, method=method)  # noqa: S310
        with urllib.request.urlopen(made, timeout=_ANSWER_SECONDS, context=self._tls) as answer:  # noqa: S310
            at = parsedate_to_datetime(answer.headers["date"])
            return json.load(answer), at if at.tzinfo is not None else at.replace(tzinfo=UTC)


if __name__ == "__main__":
    main()
