"""What goes wrong between segue and Google Cloud Storage: credentials, roles, buckets, endpoints, failing requests."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.errors import StoreUnreachableError
from segue.spec import StoreSpec
from segue.stores import Store, StoreReadError, StoreWriteError, objects, open_store
from segue.stores.gcs import GcsStore
from tests.stores.conftest import BUCKET
from tests.support.clouds.gcs import FakeGcs


@pytest.fixture
def store(gcs: FakeGcs) -> Store:
    gcs.buckets.create(BUCKET)
    return open_store(StoreSpec(url=f"gs://{BUCKET}/{uuid.uuid4().hex}", endpoint_url=gcs.url))


@pytest.fixture
def server(gcs: FakeGcs) -> Iterator[FakeGcs]:
    """The same server as of the stores; whatever a test has changed about it is as before afterwards."""
    yield gcs
    gcs.denies_access, gcs.page = False, 1000
    gcs.fail_next(0)


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(objects.RETRY, "max_retries", 1)


def refusal(url: str, endpoint_url: str | None) -> StoreUnreachableError:
    """The error of opening and checking a store."""
    with pytest.raises(StoreUnreachableError) as raised:
        open_store(StoreSpec(url=url, endpoint_url=endpoint_url)).check()
    assert raised.value.fix in str(raised.value)
    return raised.value


def test_a_bucket_that_is_not_there_is_reported_as_missing(server: FakeGcs) -> None:
    error = refusal("gs://no-such-bucket/runs", server.url)
    assert "there is no bucket 'no-such-bucket'. Fix: create the bucket" in str(error)
    store = open_store(StoreSpec(url="gs://no-such-bucket/runs", endpoint_url=server.url))
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError, match="no such bucket"):
            write("a", b"x")
    for read in (store.folders, lambda: store.list_objects("run/")):
        with pytest.raises(StoreReadError, match="404 Not Found"):
            read()
    with pytest.raises(StoreReadError, match="HTTPError"):
        store.drop_unfinished("run/")


def test_an_account_without_a_role_is_told_so_and_no_answer_of_the_server_is_quoted(
    store: Store, server: FakeGcs
) -> None:
    server.denies_access = True
    assert "the credentials give no access to the bucket. Fix: check the credentials, and their roles" in str(
        refusal(store.url, server.url)
    )
    for read in (lambda: store.get("a"), lambda: store.size("a"), store.folders, lambda: store.list_objects("")):
        with pytest.raises(StoreReadError) as raised:
            read()
        assert "AccessDenied" not in str(raised.value)


def test_a_key_that_google_does_not_know_is_told_so(
    server: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeGcs()
    other.server_close()
    key = other.tokens.key() | {"token_uri": f"{server.url}/token"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    error = refusal(f"gs://{BUCKET}/runs", server.url)
    assert "Google gives no access token for the credentials (RefreshError)" in str(error)
    store = open_store(StoreSpec(url=f"gs://{BUCKET}/runs", endpoint_url=server.url))
    with pytest.raises(StoreWriteError) as raised:
        store.put("a", b"x")
    assert not any(line in str(raised.value) for line in key["private_key"].splitlines())


@pytest.mark.parametrize("content", [None, "", "{}", '{"type": "service_account"}'])
def test_without_credentials_that_can_be_used_no_store_is_opened(
    server: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is None:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    else:
        (tmp_path / "key.json").write_text(content)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    assert "no credentials that it can use. Fix: name a key file in GOOGLE_APPLICATION_CREDENTIALS" in str(
        refusal(f"gs://{BUCKET}/runs", server.url)
    )


def test_an_endpoint_without_a_server_is_reported_with_its_address(store: Store) -> None:
    assert "the endpoint (http://127.0.0.1:9) and the network" in str(refusal(store.url, "http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("url", "endpoint_url", "region", "why"),
    [
        ("gs://", None, None, "has no bucket"),
        ("gs:///runs", None, None, "has no bucket"),
        ("gs:bucket/runs", None, None, "must be followed by two slashes"),
        ("gs://bucket/runs?generation=1", None, None, "has a '?' or '#'"),
        ("gs://bucket/runs//other", None, None, "cannot be a prefix"),
        ("gs://bucket/runs", None, "europe-west4", "not for gs://"),
        ("gs://bucket/runs", "http://gcs.example", None, "others could read the credentials"),
        ("gs://token@bucket/runs", None, None, "may not contain credentials"),
    ],
)
def test_a_store_that_cannot_be_is_refused(
    gcs: FakeGcs, url: str, endpoint_url: str | None, region: str | None, why: str
) -> None:
    with pytest.raises(StoreUnreachableError, match="Fix: ") as raised:
        open_store(StoreSpec.model_construct(url=url, endpoint_url=endpoint_url, region=region, signing_key=None))
    assert why in str(raised.value)


def test_an_endpoint_without_a_scheme_is_refused(gcs: FakeGcs) -> None:
    with pytest.raises(StoreUnreachableError, match=r"is not a URL\. Fix: write it with https://"):
        GcsStore(bucket="bucket", endpoint_url="localhost:4443")


@pytest.mark.matrix
def test_requests_that_fail_for_a_while_are_repeated(store: Store, server: FakeGcs) -> None:
    for request in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("b", b"x"),
        lambda: store.get("a"),
        lambda: store.list_objects(""),
        lambda: store.put("large", b"x" * (17 << 20)),
    ):
        server.fail_next(1)
        request()
    assert [item.key for item in store.list_objects("")] == ["a", "b", "large"]


def test_requests_that_fail_for_long_fail_as_ones_that_may_be_tried_again(
    few_retries: None, server: FakeGcs, store: Store
) -> None:
    patient = open_store(StoreSpec(url=store.url, endpoint_url=server.url))
    patient.put("a", b"x")  # With its token.
    server.fail_next(1000)
    for write in (patient.put, patient.put_if_absent):
        with pytest.raises(StoreWriteError, match="503 Service Unavailable"):
            write("a", b"x")
    for read in (lambda: patient.get("a"), lambda: patient.list_objects(""), lambda: patient.drop_unfinished("a/")):
        with pytest.raises(StoreReadError):
            read()
    server.fail_next(0)
    assert patient.get("a") == b"x"


def test_no_request_and_no_token_draws_from_the_random_streams_of_the_recipe(server: FakeGcs, store: Store) -> None:
    fresh = open_store(StoreSpec(url=store.url, endpoint_url=server.url))
    before = random.getstate()
    server.fail_next(1, of="POST /token")
    fresh.check()
    for request in (lambda: fresh.put("a", b"x"), lambda: fresh.drop_unfinished("a/"), fresh.folders):
        server.fail_next(1, of=f"GET /{BUCKET}")
        server.fail_next(1, of=f"PUT /{BUCKET}")
        try:
            request()
        except StoreReadError:  # One that is not worth a second try.
            continue
    assert random.getstate() == before


def test_unfinished_uploads_are_found_on_every_page(store: Store, server: FakeGcs) -> None:
    server.page = 3
    prefix = store.url.removeprefix(f"gs://{BUCKET}/")
    for number in range(10):
        server.buckets.begin(BUCKET, f"{prefix}/run/{number}")
        server.buckets.begin(BUCKET, f"{prefix}/other/{number}")
    store.drop_unfinished("run/")
    left = server.buckets.uploads(BUCKET, prefix=f"{prefix}/", after=("", ""), most=100)
    assert [key.removeprefix(f"{prefix}/") for key, _ in left] == [f"other/{number}" for number in range(10)]


@pytest.mark.matrix
def test_a_writer_whose_upload_was_dropped_fails_and_may_try_again(store: Store, server: FakeGcs) -> None:
    sweeper = open_store(StoreSpec(url=store.url, endpoint_url=server.url))
    has_dropped = []
    add_part = server.buckets.add_part

    def drop_once(*args: object) -> None:
        if not has_dropped:
            has_dropped.append(args)
            sweeper.drop_unfinished("run/")
        add_part(*args)  # type: ignore[arg-type]

    server.buckets.add_part = drop_once  # type: ignore[method-assign]
    with pytest.raises(StoreWriteError):
        store.put("run/shard", b"x" * (40 << 20))
    assert has_dropped
    store.put("run/shard", b"x" * (40 << 20))
    assert store.size("run/shard") == 40 << 20


def test_without_the_extra_the_message_shows_how_to_install_it() -> None:
    code = "import sys; sys.modules['google.auth'] = None; from segue.stores import open_store; open_store('gs://a/b')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: a store on gs:// needs the extra 'gcs'. Fix: pip install 'segue[gcs]'" in ended.stderr
