"""Files of a run in Google Cloud and on Azure, through gcsfs and adlfs: as those on S3."""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from segue.data.files import checked_copies, fetch, find, written_at
from segue.errors import DataChangedError, DataUnreadableError, MissingExtraError
from segue.spec import DataAccess, DataFile, DataSpec
from tests.support.clouds import azurite

LAKE = "lake"
Upload = Callable[[str, bytes], str]


@pytest.fixture(params=["gcs", "azurite"])
def upload(request: pytest.FixtureRequest) -> Upload:
    """Puts a file into a bucket of one of the clouds, and returns its URL."""
    folder = uuid.uuid4().hex
    if request.param == "gcs":
        buckets = request.getfixturevalue("gcs").buckets
        buckets.create(LAKE)

        def to_google(name: str, content: bytes) -> str:
            buckets.put(LAKE, f"{folder}/{name}", content)
            return f"gs://{LAKE}/{folder}/{name}"

        return to_google
    endpoint_url = request.getfixturevalue("azurite_url")
    azurite.create_container(endpoint_url, LAKE)

    def to_azure(name: str, content: bytes) -> str:
        with azurite.container(endpoint_url, LAKE) as client:
            client.upload_blob(f"{folder}/{name}", content, overwrite=True)
        return f"az://{LAKE}/{folder}/{name}"

    return to_azure


def test_files_are_found_by_folders_and_globs_under_the_scheme_that_was_given(upload: Upload) -> None:
    may, june = (upload(f"2026/{name}", b"a,b") for name in ("05.csv", "06.csv"))
    upload("2026/_SUCCESS", b"")
    upload("2026/", b"")
    if may.startswith("gs:"):
        upload("2026/07/", b"")  # adlfs shows it without the slash, as an empty file.
    folder = may.removesuffix("05.csv")
    assert find(folder) == find(f"{folder}*.csv") == [may, june]
    assert find(f"{folder}2025/") == []


def test_a_folder_says_when_its_files_were_written(upload: Upload) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)  # The clouds know whole seconds.
    upload("2026/05.csv", b"a,b")
    folder = upload("2026/_SUCCESS", b"a").removesuffix("/_SUCCESS")
    times = written_at(folder)
    assert times.keys() == {"05.csv", "_SUCCESS"}
    assert all(time is not None and time >= before for time in times.values()), times


def test_a_file_is_copied_once_and_read_from_the_cache(upload: Upload, tmp_path) -> None:
    content = np.random.default_rng(0).bytes(9_000_000)
    url = upload("may.csv.gz", content)
    access = DataAccess(cache_folder=str(tmp_path / "cache"))
    file, copy = fetch(url, access)
    assert (file.path, file.sha256, copy.read_bytes()) == (url, hashlib.sha256(content).hexdigest(), content)
    upload("may.csv.gz", b"other")
    data = DataSpec(files=(file,), cache_folder=access.cache_folder)
    assert checked_copies(data) == [copy]
    copy.unlink()
    with pytest.raises(DataChangedError, match=f"{url} has changed"):
        checked_copies(data)


def test_a_file_that_is_not_there_is_said_to_be_missing(upload: Upload, tmp_path) -> None:
    missing = upload("there.csv", b"").replace("there", "missing")
    with pytest.raises(DataUnreadableError, match=r"missing\.csv could not be read: it is missing\. Fix: "):
        fetch(missing, DataAccess(cache_folder=str(tmp_path)))


def test_a_file_that_may_not_be_read_is_named(gcs, tmp_path) -> None:
    gcs.buckets.create(LAKE)
    gcs.denies_access = True
    try:
        with pytest.raises(DataUnreadableError, match=rf"gs://{LAKE}/may\.csv could not be read: Forbidden"):
            fetch(f"gs://{LAKE}/may.csv", DataAccess(cache_folder=str(tmp_path)))
    finally:
        gcs.denies_access = False


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("gs://lake/a", "gcsfs", "gcs"), ("az://lake/a", "adlfs", "azure"), ("abfs://lake/a", "adlfs", "azure")],
)
def test_without_the_extra_the_message_shows_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    from fsspec.registry import _registry

    for scheme in ("gs", "gcs", "az", "abfs"):
        monkeypatch.delitem(_registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    file = DataFile(path=url, sha256="0" * 64, size_bytes=0)
    with pytest.raises(MissingExtraError, match=rf"Reading {url} needs the extra '{extra}'"):
        checked_copies(DataSpec(files=(file,)))
