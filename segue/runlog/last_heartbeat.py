"""Reads the heartbeat of an attempt: a small object that the attempt overwrites while it is alive."""

from __future__ import annotations

from segue.errors import MissingObjectError
from segue.records import Heartbeat
from segue.runlog import keys
from segue.runlog.history import Attempt
from segue.runlog.log import RunLog


def last_heartbeat(runlog: RunLog, attempt: Attempt | None) -> Heartbeat | None:
    """Return the newest heartbeat of an attempt. Return None if no heartbeat exists or it cannot be parsed.

    Raises:
        StoreReadError: the store could not be read.
    """
    if attempt is None:
        return None
    try:
        data = runlog.store.get(keys.heartbeat_key(runlog.run_id, attempt.claim.attempt_id))
        return Heartbeat.model_validate_json(data)
    except (MissingObjectError, ValueError):
        return None
