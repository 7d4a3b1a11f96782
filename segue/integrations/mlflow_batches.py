"""Sends batches of metrics, parameters and tags to MLflow.

If MLflow refuses an entry, the module drops the entry and logs its name once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from segue.credentials import redacted

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

log = logging.getLogger(__name__)

Kind = Literal["metrics", "params", "tags"]
_MOST: dict[Kind, int] = {"metrics": 1000, "params": 100, "tags": 100}
"""Maximum number of entries in one request to MLflow's REST API."""
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST")
_MOST_TRIES = 8
"""MLflow may refuse this number of values of one name. The sender then drops the name's other values in the batch."""
_MOST_CHARACTERS = 200


class MlflowSender:
    """Sends entries to one MLflow run."""

    def __init__(self, client: MlflowClient, run_id: str, *, left_out: dict[str, str]) -> None:
        """The sender adds the name of each refused entry, with the reason, to `left_out`."""
        self._client, self._run_id, self._left_out = client, run_id, left_out

    def send(self, kind: Kind, items: Sequence[Metric] | Sequence[Param] | Sequence[RunTag]) -> None:
        """Send all entries that MLflow accepts.

        Raises:
            MlflowException: MLflow does not answer, or the MLflow run was deleted.
        """
        for start in range(0, len(items), _MOST[kind]):
            self._send(kind, items[start : start + _MOST[kind]])

    def _send(self, kind: Kind, items: Sequence[Metric | Param | RunTag]) -> None:
        if self._refusal(kind, items) is None:
            return
        self._require_active()
        by_name = sorted(items, key=lambda item: item.key)
        for name, group in groupby(by_name, key=lambda item: item.key):
            mine = [*group]
            why = self._refusal(kind, mine)
            if why is not None:
                self._leave_out(name, self._one_by_one(kind, mine) if len(mine) > 1 else why)

    def _one_by_one(self, kind: Kind, items: Sequence[Metric | Param | RunTag]) -> str:
        """Send the entries one by one. Return the reason of the last refusal."""
        reason, tries = "", 0
        for item in items:
            why = self._refusal(kind, [item])
            reason, tries = (why, tries + 1) if why is not None else (reason, tries)
            if tries == _MOST_TRIES:
                break
        return reason

    def _refusal(self, kind: Kind, items: Sequence[Metric | Param | RunTag]) -> str | None:
        """Send the entries. If MLflow refuses them, return the reason. If MLflow accepts them, return None."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run_id, **{kind: items})  # type: ignore[arg-type]
        except MlflowException as error:
            if error.error_code not in _REFUSED:
                raise
            return redacted(" ".join(str(error).split()))[:_MOST_CHARACTERS]
        return None

    def _require_active(self) -> None:
        """If the MLflow run was deleted, raise an error, because MLflow refuses all entries of a deleted run."""
        from mlflow.exceptions import MlflowException

        stage = self._client.get_run(self._run_id).info.lifecycle_stage
        if stage != "active":
            raise MlflowException(f"the run {self._run_id} is {stage}")

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._left_out:
            log.warning("entry left out, because MLflow refused it name=%s reason=%s", name, why)
            self._left_out[name] = why
