"""What every store promises about large objects and about what writers that died leave behind."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import boto3
import numpy as np
import pytest

from segue.errors import BadKeyError, MissingObjectError
from segue.spec import StoreSpec
from segue.stores import LocalStore, Store, StoreWriteError, open_store
from segue.stores.direct_io import PAGE_BYTES, page_buffer
from tests.stores.conftest import PLACES, Wire, bucket_at
from tests.support.clouds.gcs import FakeGcs

everywhere = pytest.mark.parametrize("place", PLACES, indirect=True)
where_they_can_be_removed = pytest.mark.parametrize(
    "place", [place for place in PLACES if place != "azurite"], indirect=True
)
"""Blocks that were not committed cannot be removed on Azure, and expire: tests/stores/test_azure.py."""

MEGABYTE = 1 << 20


def noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def on_a_page(data: bytes) -> memoryview:
    memory = page_buffer(len(data))
    memory[:] = data
    return memory


@pytest.mark.matrix
@everywhere
def test_reading_into_memory_gives_what_reading_a_range_gives(store: Store) -> None:
    data = noise(3 * PAGE_BYTES + 17)
    store.put("a", data)
    starts = [0, 1, PAGE_BYTES, len(data) - 1, len(data), len(data) + PAGE_BYTES]
    for start, wanted in itertools.product(starts, [0, 100, 2 * PAGE_BYTES, 2 * len(data)]):
        expected = store.get_range("a", start, wanted)
        for into in (page_buffer(wanted), memoryview(bytearray(wanted + 3))[3:]):
            assert store.read_into("a", start, into) == len(expected), (start, wanted)
            assert into[: len(expected)] == expected, (start, wanted)
            assert not any(into[len(expected) :]), (start, wanted)


@everywhere
@pytest.mark.parametrize("length", [0, 1, PAGE_BYTES])
def test_what_is_missing_cannot_be_read_into_memory(store: Store, length: int) -> None:
    store.put("a/b", b"x")
    for key in ("nothing", "a", "a/b/c"):
        with pytest.raises(MissingObjectError) as raised:
            store.read_into(key, 0, page_buffer(length))
        assert raised.value.key == key


@everywhere
def test_a_negative_start_is_refused(store: Store) -> None:
    store.put("a", b"0123456789")
    for start in (-1, -PAGE_BYTES):
        with pytest.raises(ValueError, match="negative"):
            store.read_into("a", start, page_buffer(4))


@pytest.mark.matrix
@everywhere
def test_a_bad_key_is_refused_before_anything_is_done(store: Store) -> None:
    for key in ("", "/abs", "../x", "a/../b", "a//b", "a\0b", ".staged-x"):
        with pytest.raises(BadKeyError):
            store.read_into(key, 0, page_buffer(4))
    for prefix in ("", "/", "../x/", "a/../b/", "a//b/"):
        with pytest.raises(BadKeyError):
            store.drop_unfinished(prefix)


@pytest.mark.matrix
@everywhere
@pytest.mark.parametrize(
    "size_bytes",
    [MEGABYTE - 1, MEGABYTE, 17 * MEGABYTE + 5, pytest.param(33 * MEGABYTE, marks=pytest.mark.matrix)],
)
def test_a_large_object_comes_back_in_parts_byte_for_byte(store: Store, size_bytes: int) -> None:
    data = noise(size_bytes)
    store.put("big/shard", on_a_page(data))
    assert store.size("big/shard") == size_bytes
    whole = page_buffer(size_bytes)
    for start in range(0, size_bytes, 8 * MEGABYTE):
        part = whole[start : start + 8 * MEGABYTE]
        assert store.read_into("big/shard", start, part) == len(part)
    assert whole == data


@everywhere
def test_a_part_of_memory_is_stored_wherever_it_begins(store: Store) -> None:
    whole = on_a_page(noise(3 * MEGABYTE))
    for start, stop in [(0, MEGABYTE + 1), (1, MEGABYTE + 2), (PAGE_BYTES, 2 * MEGABYTE), (7, 8)]:
        store.put("a", whole[start:stop])
        assert store.get("a") == bytes(whole[start:stop])


@pytest.mark.matrix
@everywhere
@pytest.mark.parametrize("count", [10, 300_000, 9_000_000])
def test_a_view_of_numbers_is_stored_as_their_bytes(store: Store, count: int) -> None:
    numbers = np.arange(count, dtype=np.float32)
    store.put("numbers", memoryview(numbers))
    assert store.size("numbers") == numbers.nbytes
    assert store.get("numbers") == numbers.tobytes()


class Uploads(Protocol):
    """Half-written objects, made and counted past the store."""

    def begin(self, key: str) -> None: ...

    def keys(self) -> list[str]: ...


class FolderUploads:
    def __init__(self, place: StoreSpec) -> None:
        self._root = Path(place.url)

    def begin(self, key: str) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".staged-{path.name}").write_bytes(b"half")

    def keys(self) -> list[str]:
        found = self._root.rglob(".staged-*")
        return sorted(path.relative_to(self._root).as_posix().replace(".staged-", "") for path in found)


class S3Uploads:
    def __init__(self, client: Any, place: StoreSpec) -> None:
        self._client = client
        self._bucket, self._prefix = bucket_and_prefix(place)

    def begin(self, key: str) -> None:
        where = {"Bucket": self._bucket, "Key": f"{self._prefix}/{key}"}
        upload = self._client.create_multipart_upload(**where)
        self._client.upload_part(**where, UploadId=upload["UploadId"], PartNumber=1, Body=b"half")

    def keys(self) -> list[str]:
        answer = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=f"{self._prefix}/")
        return sorted(item["Key"].removeprefix(f"{self._prefix}/") for item in answer.get("Uploads", ()))


class GcsUploads:
    def __init__(self, server: FakeGcs, place: StoreSpec) -> None:
        self._buckets = server.buckets
        self._bucket, self._prefix = bucket_and_prefix(place)

    def begin(self, key: str) -> None:
        upload_id = self._buckets.begin(self._bucket, f"{self._prefix}/{key}")
        self._buckets.add_part(self._bucket, upload_id, 1, b"half")

    def keys(self) -> list[str]:
        found = self._buckets.uploads(self._bucket, prefix=f"{self._prefix}/", after=("", ""), most=1000)
        return [key.removeprefix(f"{self._prefix}/") for key, _ in found]


def bucket_and_prefix(place: StoreSpec) -> tuple[str, str]:
    parts = urlsplit(place.url)
    return parts.netloc, parts.path.strip("/")


@pytest.fixture
def uploads(place: StoreSpec, request: pytest.FixtureRequest) -> Iterator[Uploads]:
    if place.endpoint_url is None:
        yield FolderUploads(place)
    elif place.url.startswith("gs://"):
        yield GcsUploads(request.getfixturevalue("gcs"), place)
    else:
        client = boto3.client("s3", endpoint_url=place.endpoint_url)
        yield S3Uploads(client, place)
        client.close()


@where_they_can_be_removed
def test_half_written_objects_below_the_prefix_go_and_nothing_else_does(store: Store, uploads: Uploads) -> None:
    for key in ("run/a-1/step-1/x", "run/a-1/step-2/y", "run/a-10/step-1/x", "run/a-2/x", "run-2/a-1/x"):
        uploads.begin(key)
        uploads.begin(key)
        store.put(f"{key}-whole", b"whole")
    listed = store.list_objects("")
    store.drop_unfinished("run/a-1/")
    assert sorted(set(uploads.keys())) == ["run-2/a-1/x", "run/a-10/step-1/x", "run/a-2/x"]
    assert store.list_objects("") == listed
    for prefix in ("run/a-1/", "run/", "run-2/", "nothing/at/all/"):
        store.drop_unfinished(prefix)
    assert uploads.keys() == []
    assert store.list_objects("") == listed


@where_they_can_be_removed
def test_a_folder_that_held_nothing_else_is_gone_with_its_half_written_objects(store: Store, uploads: Uploads) -> None:
    uploads.begin("run/a-1/step-1/x")
    store.drop_unfinished("run/a-1/")
    assert (store.list_objects(""), store.folders()) == ([], [])


def test_a_writer_that_is_alive_after_all_fails_and_may_try_again_in_a_folder(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path).create(), on_a_page(noise(24 * MEGABYTE))
    done = threading.Event()

    def drop() -> None:
        while not done.is_set():
            LocalStore(tmp_path).drop_unfinished("run/")

    dropper = threading.Thread(target=drop)
    dropper.start()
    try:
        for _ in range(3):
            with suppress(StoreWriteError):
                store.put("run/shard", data)
    finally:
        done.set()
        dropper.join()
    store.put("run/shard", data)
    assert store.get("run/shard") == data
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".segue-store", "shard"]


@pytest.mark.matrix
def test_a_writer_that_is_alive_after_all_fails_and_may_try_again_on_s3(wire: Wire, moto_url: str) -> None:
    url, data = f"{bucket_at(moto_url)}/late", on_a_page(noise(40 * MEGABYTE))
    store = open_store(StoreSpec(url=url, endpoint_url=wire.url))
    sweeper = open_store(StoreSpec(url=url, endpoint_url=moto_url))
    lock, has_dropped = threading.Lock(), []

    def drop_once(request: Any) -> bool:
        with lock:
            if request.command == "PUT" and "uploadId=" in request.path and not has_dropped:
                has_dropped.append(request.path)
                sweeper.drop_unfinished("run/")
        return False

    wire.observer = drop_once
    with pytest.raises(StoreWriteError) as raised:
        store.put("run/shard", data)
    assert raised.value.key == "run/shard"
    assert has_dropped
    store.put("run/shard", data)
    assert store.get("run/shard") == data
