"""Updates the artifacts in the Prefect UI that show the current view of a run, and defines the artifacts' keys."""

from __future__ import annotations

import base64
import re
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import PrefectHTTPStatusError

from segue.controller.standbys.messages import held_by_standbys
from segue.errors import MissingExtraError
from segue.reports.cost_report import cost_report
from segue.reports.page import Picture, RunView, headline
from segue.reports.run_plot import draw
from segue.reports.summary import live_of
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec


def artifact_key(run_id: str) -> str:
    """Return the key of a run's artifact. Prefect permits only lower-case letters, digits and dashes in the key."""
    return "segue-" + re.sub(r"[^a-z0-9-]+", "-", run_id).strip("-")


def described(view: RunView) -> str:
    """Return the text of a run's progress artifact."""
    return headline(view).replace("**", "")


def share_of(view: RunView) -> float:
    """Return the percentage of the run's steps that are done, for its progress artifact."""
    return round(min(100.0 * view.summary.step / view.spec.steps, 100.0), 1)


def page_artifact(spec: RunSpec, **runs: UUID | None) -> LiveArtifact:
    """Return the artifact of the run's page."""
    return LiveArtifact(artifact_key(spec.run_id), kind="markdown", **runs)


def progress_artifact(spec: RunSpec, **runs: UUID | None) -> LiveArtifact:
    """Return the artifact of the run's progress."""
    return LiveArtifact(artifact_key(f"{spec.run_id}-progress"), kind="progress", **runs)


class LiveArtifact:
    """One version of an artifact. An update overwrites this version, because Prefect would keep every new version."""

    def __init__(
        self, key: str, *, kind: str, flow_run_id: UUID | None = None, task_run_id: UUID | None = None
    ) -> None:
        self._facts = {"key": key, "type": kind, "flow_run_id": flow_run_id, "task_run_id": task_run_id}
        self._id: UUID | None = None

    def begin_version(self) -> None:
        """Let the next write create a new version. The previous version stays unchanged."""
        self._id = None

    def write(self, client: SyncPrefectClient, data: Any, *, description: str) -> None:
        """Create the version at the first call, and update it at later calls.

        Raises:
            httpx.HTTPError, PrefectHTTPStatusError: the version was not written.
        """
        if self._id is not None and self._update(client, data, description):
            return
        facts = {name: value for name, value in self._facts.items() if value is not None}
        self._id = client.create_artifact(ArtifactCreate(**facts, data=data, description=description)).id

    def _update(self, client: SyncPrefectClient, data: Any, description: str) -> bool:
        """Update the version. Return False if a person has deleted the version."""
        content = {"data": data, "description": description}
        try:
            # Prefect's `update_artifact` is not used, because it emits an event with all data for each update.
            client.request("PATCH", "/artifacts/{id}", path_params={"id": self._id}, json=content)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return False
        return True


def view_of(
    runlog: RunLog, spec: RunSpec, *, now: datetime, waiting: str | None = None, unguarded: str | None = None
) -> RunView:
    """Return the current view of the run.

    Raises:
        StoreReadError: the store could not be read.
    """
    history = read_history(runlog)
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    beat = last_heartbeat(runlog, attempt)
    standbys = held_by_standbys(runlog.store, spec.run_id)
    cost = cost_report(spec, history, live=live_of(beat, history), standbys=standbys)
    troubles = {"waiting": None if attempt is not None else waiting, "unguarded": unguarded}
    return RunView(spec, history, cost, now, beat=beat, **troubles)


def picture_of(runlog: RunLog, *, now: datetime) -> Picture | None:
    """Return the current plot of the run. Return None if matplotlib is not installed.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return Picture("data:image/png;base64," + base64.b64encode(draw(runlog)).decode(), now)
    except MissingExtraError:
        return None
