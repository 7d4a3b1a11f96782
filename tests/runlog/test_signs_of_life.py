"""A parent reads the heartbeats of newer versions, which may have more fields."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from segue.records import Heartbeat, ParentRecord

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BEAT = Heartbeat(attempt_id="seg000-a1-e1", counter=7, phase="training", step=12, trainer_pid=5, beat_at=NOW)
PARENT = ParentRecord(run_id="tiny", timeout_seconds=60, beat_at=NOW)


@pytest.mark.parametrize("record", [BEAT, PARENT])
def test_fields_of_a_newer_version_are_ignored(record):
    data = json.loads(record.model_dump_json()) | {"field_of_tomorrow": {"unit": "s"}, "another": 1}
    assert type(record).model_validate_json(json.dumps(data)) == record


@pytest.mark.parametrize("record", [BEAT, PARENT])
def test_a_record_without_its_time_is_refused(record):
    data = json.loads(record.model_dump_json())
    del data["beat_at"]
    with pytest.raises(ValidationError, match="beat_at"):
        type(record).model_validate_json(json.dumps(data))
