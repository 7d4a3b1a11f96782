"""The doctor's checks on buckets: what S3 says of itself, and servers that break the one requirement."""

from __future__ import annotations

import uuid

import pytest

from segue.clock import SystemClock
from segue.doctor import clock_skew, stores
from segue.doctor.check import examine
from segue.doctor.races import race
from segue.doctor.scratch import Scratch
from segue.doctor.subject import Subject
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.objects import ObjectStore
from segue.stores.s3 import removes
from tests.cli.test_errors import closed_port
from tests.doctor.showing import bad, good, makes_fail
from tests.stores.conftest import BUCKET, bucket_at, place_at

__all__ = ["closed_port"]

EXPIRES = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}


@pytest.fixture
def bucket_spec(bucket):
    return StoreSpec(url=f"s3://{bucket.name}/examined", endpoint_url=bucket.url)


@pytest.mark.matrix
def test_a_sound_bucket_passes_every_check_and_keeps_nothing_of_them(bucket_spec):
    checks = examine(stores.items(Subject(store=bucket_spec)))
    assert [check for check in checks if check.outcome != "ok"] == []
    assert open_store(bucket_spec).list_objects("") == []


@pytest.mark.matrix
@makes_fail("store.put-if-absent")
def test_a_server_that_ignores_the_condition_of_a_put_lets_several_writers_win(wire):
    def forget_condition(request):
        del request.headers["If-None-Match"]
        return False

    spec = StoreSpec(url=f"{bucket_at(f'http://{wire.onward}')}/raced", endpoint_url=wire.url)
    wire.observer = forget_condition
    bad("store.put-if-absent", race(open_store(spec), spec, Scratch()), "fail", "8 of 8 writers of one key")


@pytest.mark.matrix
@makes_fail("store.reachable")
@pytest.mark.parametrize("place", ["no bucket", "no server"])
def test_a_bucket_that_is_not_there_is_not_reachable(bucket, place, closed_port):
    url = f"http://127.0.0.1:{closed_port}" if place == "no server" else bucket.url
    spec = StoreSpec(url="s3://segue-has-none/x", endpoint_url=url)
    first, *others = examine(stores.items(Subject(store=spec)))
    bad("store.reachable", first, "fail", "does not answer" if place == "no server" else "there is no bucket")
    assert {check.outcome for check in others} == {"skipped"}


@makes_fail("store.retention")
def test_a_lifecycle_rule_that_expires_objects_is_found(bucket, bucket_spec):
    client = bucket.client
    client.create_bucket(Bucket="segue-tidied")
    spec = bucket_spec.model_copy(update={"url": "s3://segue-tidied/examined"})
    good(stores.retention(open_store(spec)))
    client.put_bucket_lifecycle_configuration(Bucket="segue-tidied", LifecycleConfiguration={"Rules": [EXPIRES]})
    bad(
        "store.retention", stores.retention(open_store(spec)), "fail", "'tidy' expires or archives", "leave this prefix"
    )


@pytest.mark.parametrize(
    ("rule", "is_harm"),
    [
        (EXPIRES, True),
        (EXPIRES | {"Status": "Disabled"}, False),
        (EXPIRES | {"Filter": {"Prefix": "teams/vision/"}}, True),
        (EXPIRES | {"Filter": {"Prefix": "teams/vision/runs/old"}}, True),
        (EXPIRES | {"Filter": {"Prefix": "teams/audio/"}}, False),
        (EXPIRES | {"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, False),
        ({"Status": "Enabled", "Prefix": "", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}, False),
        ({"Status": "Enabled", "Prefix": "teams", "Transitions": [{"Days": 3, "StorageClass": "GLACIER"}]}, True),
        (
            {"Status": "Enabled", "Prefix": "", "Transitions": [{"Days": 0, "StorageClass": "INTELLIGENT_TIERING"}]},
            False,
        ),
        ({"Status": "Enabled", "Transitions": [{"Days": 0, "StorageClass": "NEW_CLASS"}]}, True),
    ],
)
def test_only_rules_that_take_objects_below_the_prefix_away_do_harm(rule, is_harm):
    assert removes(rule, "teams/vision/") is is_harm


def test_the_time_of_an_object_is_the_servers(bucket_spec):
    good(clock_skew.clock_skew(open_store(bucket_spec), Scratch(), clock=SystemClock()))


@pytest.fixture
def gcs_spec(gcs):
    gcs.buckets.create(BUCKET)
    yield StoreSpec(url=f"gs://{BUCKET}/{uuid.uuid4().hex}", endpoint_url=gcs.url)
    gcs.denied_methods = set()
    gcs.lose_answers(0)


@pytest.mark.matrix
@pytest.mark.parametrize("server", ["gcs", "azurite"])
def test_a_bucket_of_google_or_azure_passes_every_check_but_shows_no_rules(request, server):
    spec = place_at(request, server, prefix=uuid.uuid4().hex)
    checks = examine(stores.items(Subject(store=spec)))
    assert {check.name for check in checks if check.outcome != "ok"} == {"store.retention"}
    assert open_store(spec).list_objects("") == []


@pytest.mark.parametrize("nth", [1, 2])
def test_a_put_that_was_carried_out_and_not_answered_refuses_no_sound_store(gcs, gcs_spec, nth, monkeypatch):
    store = open_store(gcs_spec)
    if nth == 1:
        gcs.lose_answers(1)
    else:
        monkeypatch.setattr(ObjectStore, "_first_write", lambda *args: gcs.lose_answers(1))
    store.check()
    gcs.lose_answers(1)
    good(stores.right_to_write(store, Scratch()))
    assert store.list_objects("") == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("methods", "failed"),
    [
        ({"PUT", "DELETE", "POST"}, {"store.write": "storage.objects.create"}),
        ({"DELETE"}, {"store.delete": "storage.objects.delete"}),
        ({"GET"}, {"store.read": "storage.objects.get", "store.list": "storage.objects.list"}),
    ],
)
def test_rights_that_a_role_on_google_lacks_are_named(gcs, gcs_spec, methods, failed):
    gcs.denied_methods = methods
    checks = {check.name: check for check in examine(stores.items(Subject(store=gcs_spec)))}
    assert {name for name, check in checks.items() if check.outcome == "fail"} == set(failed)
    for name, permission in failed.items():
        assert permission in checks[name].fix


@makes_fail("store.reachable")
@pytest.mark.parametrize(("server", "url"), [("gcs", "gs://segue-has-none/x"), ("azurite", "az://segue-has-none/x")])
def test_a_bucket_of_google_or_azure_that_is_not_there_is_not_reachable(request, server, url):
    spec = place_at(request, server, prefix="x").model_copy(update={"url": url})
    first, *_ = examine(stores.items(Subject(store=spec)))
    bad("store.reachable", first, "fail", "there is no", "'segue-has-none'", "create the")
