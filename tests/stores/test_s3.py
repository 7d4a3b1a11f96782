"""What goes wrong between segue and S3: keys, buckets, endpoints, lost answers, stores that do not keep the promise."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import botocore.utils
import numpy as np
import pytest
import torch

from segue.errors import MissingObjectError, SpecError, StoreUnreachableError
from segue.runlog import keys
from segue.runlog.entries import QuarantineEntry, encode
from segue.runlog.log import RunLog
from segue.runlog.packs import PACK_SLOTS
from segue.spec import RunSpec, StoreSpec
from segue.stores import ObjectInfo, StoreReadError, StoreWriteError, objects, open_store, s3
from segue.stores.base import check_by_writing, put_new
from segue.stores.s3 import S3Store
from tests.flows.test_runs import until
from tests.runlog.test_log import note
from tests.stores.conftest import SECRET_KEY, Wire, bucket_at

ALMOST_A_SECRET = "not-the-right-secret"
QUICKLY_SECONDS = 60.0
both_servers = pytest.mark.parametrize(
    "server", ["moto", pytest.param("radosgw", marks=(pytest.mark.radosgw, pytest.mark.matrix))]
)


@pytest.fixture
def endpoint_url(request: pytest.FixtureRequest, server: str) -> str:
    return request.getfixturevalue(f"{server}_url")


def refusal(url: str, endpoint_url: str | None = None) -> StoreUnreachableError:
    """The error of the check; it comes soon and contains no secret."""
    started = time.monotonic()
    with pytest.raises(StoreUnreachableError) as raised:
        open_store(StoreSpec(url=url, endpoint_url=endpoint_url) if endpoint_url else url).check()
    assert time.monotonic() - started < QUICKLY_SECONDS
    assert raised.value.fix
    assert raised.value.fix in str(raised.value)
    assert raised.value.exit_code == 2
    assert not any(secret in str(raised.value) for secret in (SECRET_KEY, ALMOST_A_SECRET))
    return raised.value


@pytest.mark.matrix
@both_servers
def test_a_bucket_that_is_not_there_is_reported_as_missing(endpoint_url: str) -> None:
    error = refusal("s3://segue-no-such-bucket/runs", endpoint_url)
    assert "there is no bucket 'segue-no-such-bucket'. Fix: create the bucket" in str(error)


@both_servers
def test_without_a_bucket_every_write_and_listing_fails_as_one_that_may_be_tried_again(endpoint_url: str) -> None:
    store = open_store(StoreSpec(url="s3://segue-no-such-bucket", endpoint_url=endpoint_url))
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError, match="no such bucket"):
            write("a", b"x")
    for read in (store.folders, lambda: store.list_objects("run/")):
        with pytest.raises(StoreReadError, match="404 Not Found"):
            read()


@pytest.mark.matrix
@pytest.mark.radosgw
def test_wrong_credentials_are_said_to_be_wrong(radosgw_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = bucket_at(radosgw_url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ALMOST_A_SECRET)
    assert "the credentials give no access to the bucket. Fix: check the credentials" in str(
        refusal(bucket, radosgw_url)
    )
    store = open_store(StoreSpec(url=bucket, endpoint_url=radosgw_url))
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError, match="access denied or credentials expired"):
            write("a", b"x")
    for read in (lambda: store.get("a"), lambda: store.size("a"), store.folders, lambda: store.list_objects("")):
        with pytest.raises(StoreReadError) as raised:
            read()
        assert "Signature" not in str(raised.value)  # The server's answer is not passed on: it quotes the request.


def test_missing_credentials_are_reported_as_missing(aws_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(refusal("s3://bucket/runs"))


def test_an_endpoint_without_a_server_is_reported_as_not_answering(aws_keys: None) -> None:
    error = refusal("s3://bucket/runs", "http://127.0.0.1:9")
    assert "does not answer" in str(error)
    assert "check the endpoint (http://127.0.0.1:9)" in str(error)


def test_a_server_that_dies_while_in_use_fails_reads_and_writes(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(objects.RETRY, "max_retries", 1)
    store = open_store(StoreSpec(url=bucket_at(wire.url), endpoint_url=wire.url))
    store.put("dies/a", b"x")
    wire.observer = lambda request: True
    with pytest.raises(StoreWriteError):
        store.put("dies/a", b"y")
    for read in (lambda: store.get("dies/a"), lambda: store.get_range("dies/a", 0, 1), lambda: store.list_objects("")):
        with pytest.raises(StoreReadError):
            read()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "has no bucket"),
        ("s3:///runs", "has no bucket"),
        ("s3://bucket/runs?versions", "has a '?' or '#'"),
        ("s3://bucket/runs/../other", "cannot be a prefix"),
        ("s3://bucket/runs//other", "cannot be a prefix"),
        ("s3://No_Bucket!/runs", "is not the address of a bucket"),
        (f"s3://key:{ALMOST_A_SECRET}@bucket/runs", "may not contain credentials"),
    ],
)
def test_a_url_that_cannot_be_a_store_is_refused(url: str, why: str, aws_keys: None) -> None:
    assert why in str(refusal(url))


def test_an_endpoint_without_a_scheme_is_refused(aws_keys: None) -> None:
    store = S3Store(bucket="bucket", endpoint_url="localhost:9000")
    with pytest.raises(StoreUnreachableError, match="http:// or https://"):
        store.check()
    with pytest.raises(SpecError, match="endpoint_url"):
        RunSpec.parse({"run_id": "a", "recipe": "a:b", "steps": 1, "store": {"endpoint_url": "localhost:9000"}})


def test_a_folder_marked_by_a_console_is_no_object_below_itself(moto_url: str) -> None:
    bucket, client = bucket_at(moto_url), boto3.client("s3", endpoint_url=moto_url)
    for key in ("console/run/log/", "console/run/log/a~b", "console/run/log/00000000.json", "console-2/x"):
        client.put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=b"{}")
    client.close()
    store = open_store(StoreSpec(url=f"{bucket}/console", endpoint_url=moto_url))
    assert store.list_objects("run/log/") == [("run/log/00000000.json", 2)]
    assert store.folders() == ["run"]


def test_an_answer_lost_on_the_wire_does_not_write_a_record_twice(wire: Wire) -> None:
    place = StoreSpec(url=f"{bucket_at(wire.url)}/lost-answers", endpoint_url=wire.url)
    log = RunLog(open_store(place), "run")
    puts: list[str] = []

    def lose_the_first(request: BaseHTTPRequestHandler) -> bool:
        puts.extend([request.path] if request.command == "PUT" else [])
        return request.command == "PUT" and len(puts) == 1

    wire.observer = lose_the_first
    first, second = log.append(note(1)), log.append(note(2))
    assert (first.number, second.number) == (0, 1)
    assert puts[0].endswith("/00000000.json")
    assert RunLog(open_store(place), "run").reload().slots == (first, second)


def test_a_server_that_ignores_if_none_match_is_refused(wire: Wire) -> None:
    def ignore(request: BaseHTTPRequestHandler) -> bool:
        del request.headers["If-None-Match"]
        return False

    bucket = bucket_at(wire.url)
    wire.observer = ignore
    error = refusal(bucket, wire.url)
    assert "a conditional put replaced an existing object" in str(error)
    assert "another store with conditional puts, or a folder" in str(error)


class Careless:
    """A store in memory that breaks one promise."""

    url = "memory"

    def __init__(self, vice: str) -> None:
        self.vice = vice
        self.objects: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.vice == "refuses writes":
            raise StoreWriteError(url=self.url, key=key, why="read only")
        is_new = key not in self.objects
        if is_new or self.vice in {"overwrites", "overwrites and denies it"}:
            self.objects[key] = data
        return is_new or self.vice in {"overwrites", "accepts every put"}

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        self.objects[key] = bytes(data)

    def get(self, key: str) -> bytes:
        if self.vice == "refuses reads":
            raise StoreReadError(url=self.url, key=key, why="write only")
        if self.vice == "forgets":
            raise MissingObjectError(key=key)
        return self.objects[key]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return sorted(ObjectInfo(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))

    def folders(self) -> list[str]:
        return sorted({key.split("/")[0] for key in self.objects if "/" in key})

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def check(self) -> None:
        check_by_writing(self)


@pytest.mark.parametrize(
    "vice",
    ["overwrites", "overwrites and denies it", "accepts every put", "refuses writes", "refuses reads", "forgets"],
)
def test_a_store_that_breaks_a_promise_of_the_log_is_refused(vice: str) -> None:
    with pytest.raises(StoreUnreachableError) as raised:
        Careless(vice).check()
    assert raised.value.fix in str(raised.value)


def test_a_store_that_keeps_them_passes() -> None:
    Careless("none").check()


@pytest.mark.matrix
def test_without_the_extra_the_message_shows_how_to_install_it() -> None:
    code = "import sys; sys.modules['obstore'] = None; from segue.stores import open_store; open_store('s3://a/b')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: a store on s3:// needs the extra 's3'. Fix: pip install 'segue[s3]'" in ended.stderr


@pytest.mark.matrix
def test_a_long_log_on_s3_is_the_same_from_its_records_and_from_its_pack(moto_url: str) -> None:
    records = PACK_SLOTS + 20
    store = open_store(StoreSpec(url=f"{bucket_at(moto_url)}/{uuid.uuid4().hex}", endpoint_url=moto_url))
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def put(number: int) -> None:
        entry = QuarantineEntry(entry_id=uuid.uuid4().hex, written_at=at, slot=number, reason="a note")
        store.put(keys.log_key("run", number), encode(entry))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(records)))
    log = RunLog(store, "run").reload()
    assert ([slot.entry.slot for slot in log.slots], log.damage) == (list(range(records)), ())
    key = keys.pack_key("run", log.log_id, 0)
    log.append(lambda stamp: QuarantineEntry.model_validate(stamp(epoch=0) | {"slot": 0, "reason": "a note"}))
    until(lambda: [item.key for item in store.list_objects("run/log-packs/")] == [key], what="the pack")
    assert RunLog(store, "run").reload().slots == log.slots


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_requests_that_are_repeated_leave_the_random_streams_of_the_recipe_alone(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    store = open_store(StoreSpec(url=bucket_at(wire.url), endpoint_url=wire.url))
    seen: list[str] = []

    def lose_the_first_answer(request: BaseHTTPRequestHandler) -> bool:
        seen.append(request.path)
        return len(seen) == 1

    requests: list[Callable[[], object]] = [
        lambda: store.put("calm/a", b"x"),
        lambda: store.put_if_absent("calm/b", b"x"),
        lambda: store.get("calm/a"),
        lambda: store.list_objects("calm"),
        store.folders,
        lambda: store.drop_unfinished("calm"),
        lambda: store.delete(["calm/a"]),
        store.check,
        # As botocore asks for a role's credentials: with the environment's settings.
        boto3.Session().client("s3", endpoint_url=wire.url).list_buckets,
    ]
    assert botocore.utils.random is not random, "it postpones the refresh of a role's credentials by a random time"
    for request in requests:
        seen.clear()
        wire.observer = lose_the_first_answer
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        with suppress(StoreReadError):  # One that is not worth a second try.
            request()
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        assert before[:2] == after[:2]
        assert torch.equal(before[2], after[2])
    assert len(seen) >= 2, "the last one was repeated"


class Conflicts:
    """Answers the first conditional puts of each key with 409, as S3 does to writes that overlap."""

    def __init__(self, times: int) -> None:
        self.times, self.seen = times, Counter[str]()

    def __call__(self, request: BaseHTTPRequestHandler) -> bool:
        if request.command != "PUT" or "If-None-Match" not in request.headers:
            return False
        self.seen[request.path] += 1
        return self.seen[request.path] <= self.times


@pytest.mark.parametrize("times", [1, 4])
def test_a_conflict_that_nobody_won_is_tried_again_also_in_the_check(wire: Wire, times: int) -> None:
    store = open_store(StoreSpec(url=f"{bucket_at(wire.url)}/conflict-{times}", endpoint_url=wire.url))
    wire.conflicts = Conflicts(times)
    store.check()
    assert store.put_if_absent("a", b"mine")
    assert not store.put_if_absent("a", b"theirs")
    assert put_new(store, "b", b"new")
    assert (store.get("a"), store.get("b")) == (b"mine", b"new")
    store.put("c", b"there")
    assert not store.put_if_absent("c", b"mine")


def test_a_conflict_without_an_end_is_a_write_that_failed(wire: Wire) -> None:
    store = open_store(StoreSpec(url=f"{bucket_at(wire.url)}/conflict", endpoint_url=wire.url))
    wire.conflicts = Conflicts(99)
    with pytest.raises(StoreWriteError, match="answered 5 times that the object exists, but it does not exist"):
        store.put_if_absent("a", b"mine")
    with pytest.raises(StoreUnreachableError, match=r"it cannot be written \(the bucket answered 5 times"):
        store.check()


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with an error of S3."""

    status, code = 400, ""

    def answer(self) -> None:
        body = f"<Error><Code>{self.code}</Code><Message>key AKIAIOSFODNN7EXAMPLE</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = answer

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (400, "ExpiredToken", "the session token has expired"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (403, "AccessDenied", "access denied or credentials expired"),
    ],
)
def test_what_is_wrong_with_credentials_is_said_by_the_servers_code(status, code, why):
    handler = type("Handler", (Refusing,), {"status": status, "code": code})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = S3Store(bucket="runs", endpoint_url=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(StoreWriteError, match=why) as raised:
            store.put("key", b"")
        assert "AKIA" not in str(raised.value)
        server.shutdown()


def test_credentials_of_a_role_are_asked_for_again_before_they_expire(monkeypatch):
    given = []

    class Recorded(s3.Boto3CredentialProvider):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            given.append(self)

    monkeypatch.setattr(s3, "Boto3CredentialProvider", Recorded)
    S3Store(bucket="runs")
    # boto3 may give what is valid for a little more than 10 min; obstore asks again 5 min before this time.
    assert given[0]()["expires_at"] <= datetime.now(UTC) + timedelta(minutes=10)


def test_a_delete_that_failed_is_made_a_second_time_and_not_again(moto_url, monkeypatch):
    store = open_store(StoreSpec(url=f"{bucket_at(moto_url)}/deleted", endpoint_url=moto_url))
    for key in "abc":
        store.put(key, b"")
    delete, tried = objects.obstore.delete, []

    def flaky(inner, key):
        tried.append(key)
        if key == "b" or tried.count(key) == 1:
            raise objects.obstore.exceptions.GenericError("ServerBusy")
        delete(inner, key)

    monkeypatch.setattr(objects.obstore, "delete", flaky)
    with pytest.raises(StoreWriteError, match="could not write b"):
        store.delete(["a", "b", "c"])
    assert tried == ["a", "a", "b", "b"]
    assert [found.key for found in store.list_objects("")] == ["b", "c"]
