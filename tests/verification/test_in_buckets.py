"""Drills and disturbances in buckets: requests, records and cleanup through a remote store."""

from __future__ import annotations

import time
import uuid

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.records import StopReason
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.verification.disturber import Disturber, Moment, disturbing
from segue.verification.verifications import VerificationsLog
from tests.controller.test_supervision import Segment
from tests.stores.conftest import aws_keys, azurite_url, gcs, gcs_url, moto_url, place_at
from tests.verification.drills import KILL, NOTICE, sound

__all__ = ["aws_keys", "azurite_url", "gcs", "gcs_url", "moto_url"]

pytestmark = pytest.mark.matrix
LASTS = {"steps": 100_000, "config": {"pause_seconds": 0.01}, "checkpoints": {"every_steps": 50}}


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> StoreSpec:
    return place_at(request, getattr(request, "param", "moto"), prefix=f"drills-{uuid.uuid4().hex[:8]}")


@pytest.mark.soak
@pytest.mark.parametrize("bucket", ["moto", "gcs", "azurite"], indirect=True)
def test_a_drill_in_a_bucket_passes_and_leaves_nothing_there(make_spec, bucket):
    report = drill_spec(make_spec(steps=60), kills=1, store=bucket)
    assert (report.passed, report.kills, report.kept) == (True, 1, None), report
    assert open_store(bucket).list_objects("") == []


@pytest.mark.parametrize(("kind", "reason"), [(KILL, StopReason.LOST), (NOTICE, StopReason.NOTICE)])
def test_a_segment_is_disturbed_through_a_bucket(make_spec, bucket, kind, reason):
    continuity = {"rehearsal": "off", "disturbable": True}
    fields = LASTS | {"continuity": continuity, "liveness": {"heartbeat_seconds": 0.5}}
    spec = make_spec(store=bucket.model_dump(), **fields)
    runlog = open_run(spec, clock=SystemClock())
    disturber = Disturber(runlog, spec, [Moment(kind, 100, 0.0)], clock=SystemClock())
    segment = Segment(spec, runlog)
    with disturbing(disturber, spec):
        segment.ends()
    assert segment.report.stop_reason is reason
    assert segment.report.to_step >= 100
    give_up_at = time.monotonic() + 30
    while list(disturber.hits(read_history(runlog)).values()) != [kind]:
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_the_history_is_kept_in_a_bucket(bucket):
    store = open_store(bucket)
    store.check()
    log = VerificationsLog(store, "nightly")
    assert log.add(sound()) == log.add(sound()) == (sound(),)
