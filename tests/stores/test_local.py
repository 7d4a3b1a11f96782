"""The folder store against real crashes, real file system errors and real neighbours."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from segue.errors import MissingObjectError, StoreUnreachableError
from segue.spec import StoreSpec
from segue.stores import LocalStore, StoreReadError, StoreWriteError, is_url, open_store
from segue.stores.base import StoreGoneError

MEGABYTE = 1 << 20

WRITES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from segue.stores import LocalStore
store = LocalStore(Path(sys.argv[1])).create()
for number in itertools.count():
    blob = bytes([number % 251]) * (1 << 20)
    assert store.put_if_absent(f"new/{sys.argv[2]}-{number}", blob)
    store.put("same/again", blob)
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").create()


@contextmanager
def full_disk(limit_bytes: int = 64 << 10) -> Iterator[None]:
    """No file of this process can grow beyond the limit: the write itself fails half way, as on a full disk.

    Only around the calls under test: the limit holds for the file that the test's own output goes to as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_in(store: LocalStore) -> list[str]:
    return sorted(path.name for path in store.root.rglob("*") if path.is_file() and path.name != ".segue-store")


@pytest.mark.matrix
def test_after_kills_in_the_middle_every_listed_object_is_whole(store: LocalStore) -> None:
    left_behind, acknowledged = 0, []
    for kill in range(6):
        command = [sys.executable, "-c", WRITES_FOR_EVER, str(store.root), str(kill)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            acknowledged.append(int(child.stdout.readline()))
            time.sleep(0.007 * kill)
            os.kill(child.pid, signal.SIGKILL)
            acknowledged += [int(line) for line in child.stdout if line.endswith("\n")][-1:]
        left_behind = sum(name.startswith(".staged-") for name in files_in(store))
        listed = store.list_objects("")
        assert [item.size_bytes for item in listed] == [MEGABYTE] * len(listed)
        assert all(len(set(store.get(item.key))) == 1 for item in listed)
        assert not any(".staged-" in item.key for item in listed)
        assert {f"new/{kill}-{number}" for number in range(acknowledged[-1] + 1)} <= {item.key for item in listed}
    assert left_behind <= 6
    assert store.folders() == ["new", "same"]


def test_a_file_left_half_written_is_not_listed_and_not_in_the_way(store: LocalStore) -> None:
    store.put("run/log/0", b"x")
    (store.root / "run/log/.staged-0123").write_bytes(b"ha")
    assert store.list_objects("") == store.list_objects("run/log/") == [("run/log/0", 1)]
    assert store.put_if_absent("run/log/1", b"y")


def test_a_listing_after_a_key_begins_with_the_one_behind_it(store: LocalStore) -> None:
    for number in range(3):
        store.put(f"run/log/{number}", b"x")
    assert [item.key for item in store.list_objects("run/log/", after="run/log/1")] == ["run/log/2"]
    assert store.list_objects("run/log/", after="run/log/2") == []


def test_a_full_disk_leaves_the_object_as_it_was(store: LocalStore) -> None:
    store.put("run/a", b"before")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError, match=r"File too large.*free space") as raised, full_disk():
            write("run/a", bytes(MEGABYTE))
        assert raised.value.key == "run/a"
    with pytest.raises(StoreWriteError), full_disk():
        store.put_if_absent("run/b", bytes(MEGABYTE))
    assert store.get("run/a") == b"before"
    assert store.list_objects("") == [("run/a", 6)]
    assert files_in(store) == ["a"]


def test_a_key_below_an_object_cannot_be_written_and_leaves_it_as_it_was(store: LocalStore) -> None:
    store.put("run/a", b"before")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError) as raised:
            write("run/a/below", b"x")
        assert raised.value.key == "run/a/below"
    with pytest.raises(StoreWriteError):
        store.put("run", b"x")
    assert store.list_objects("") == [("run/a", 6)]
    assert files_in(store) == ["a"]


def test_a_folder_in_the_place_of_a_record_is_neither_free_nor_an_object(store: LocalStore) -> None:
    store.put("run/log/00000000.json/x", b"x")
    assert store.put_if_absent("run/log/00000000.json", b"y") is False
    for read in (store.get, store.size):
        with pytest.raises(MissingObjectError):
            read("run/log/00000000.json")


@pytest.mark.parametrize("root", ["file/store", "file", "/proc/nowhere/store", "/dev/full/store"])
def test_a_place_that_cannot_be_written_is_refused_with_the_fix(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a regular file")
    with pytest.raises(
        StoreUnreachableError, match=r"give (a folder that|another store that) you may write to"
    ) as raised:
        LocalStore(tmp_path / root).check()
    assert raised.value.url == str(tmp_path / root)
    assert (tmp_path / "file").read_text() == "a regular file"


def test_a_folder_that_cannot_be_made_ends_in_an_error_and_not_in_a_loop() -> None:
    with pytest.raises(StoreUnreachableError, match="cannot be created"):
        LocalStore(Path("/proc/nowhere")).create()
    with pytest.raises(StoreGoneError, match="the folder is missing"):
        LocalStore(Path("/proc/nowhere")).put("a/b", b"x")


def test_the_check_on_a_full_disk_says_why(store: LocalStore) -> None:
    with pytest.raises(StoreUnreachableError, match=r"cannot be written \(File too large\)"), full_disk(0):
        store.check()


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(store: LocalStore) -> None:
    store.put("other/a", b"x")
    (store.root / "run").symlink_to("run")
    with pytest.raises(StoreReadError, match="symbolic links"):
        store.list_objects("run/")


def test_files_that_are_no_keys_are_passed_over(store: LocalStore) -> None:
    store.put("run/a", b"x")
    for name in (b"a~", b"#a#", b"new\nline", b"\xff\xfe"):
        Path(os.fsdecode(bytes(store.root / "run") + b"/" + name)).write_bytes(b"x")
    (store.root / "run/dangling").symlink_to("nowhere")
    assert store.list_objects("") == [("run/a", 1)]


def test_one_may_write_where_another_drops_the_folder_as_empty(store: LocalStore) -> None:
    failures: list[Exception] = []

    def come_and_go(name: str) -> None:
        try:
            for number in range(400):
                key = f"a/b/c/d/{name}-{number}"
                store.put(key, b"x", durable=False)
                assert store.get(key) == b"x"
                store.delete([key])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.list_objects("") == []


EVERY_OPERATION = {
    "put_if_absent": lambda store: store.put_if_absent("run/b", b"x"),
    "put": lambda store: store.put("run/b", b"x"),
    "put without fsync": lambda store: store.put("run/b", b"x", durable=False),
    "get": lambda store: store.get("run/a"),
    "get_range": lambda store: store.get_range("run/a", 0, 1),
    "read_into": lambda store: store.read_into("run/a", 0, memoryview(bytearray(4))),
    "size": lambda store: store.size("run/a"),
    "list_objects": lambda store: store.list_objects("run/"),
    "delete": lambda store: store.delete(["run/a"]),
}


@pytest.mark.parametrize("operation", EVERY_OPERATION)
@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another store"])
def test_a_store_that_vanished_is_an_error_and_is_not_created_again(
    tmp_path: Path, operation: str, opened: str, left: str
) -> None:
    root = tmp_path / "store"
    known = LocalStore(root).create()
    known.put("run/a", b"x")
    store = known if opened == "before" else LocalStore(root)
    root.rename(tmp_path / "moved")
    if left == "an empty folder":
        root.mkdir()
    elif left == "another store":
        LocalStore(root).create()
        if opened == "after":
            pytest.skip("a process that did not know the store before cannot tell")
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreGoneError, match="another store" if left == "another store" else "the folder is missing"):
        EVERY_OPERATION[operation](store)
    assert sorted(tmp_path.rglob("*")) == there
    shutil.rmtree(root, ignore_errors=True)
    (tmp_path / "moved").rename(root)
    EVERY_OPERATION[operation](store)


def test_the_uuid_of_a_store_is_written_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: LocalStore(root).create(), range(32)))
    (marker,) = root.iterdir()
    text = marker.read_text()
    LocalStore(root).check()
    assert (marker.name, marker.read_text(), len(text)) == (".segue-store", text, 32)


def test_a_store_of_the_version_before_is_known_by_its_runs_and_marked_by_the_next_check(tmp_path: Path) -> None:
    store = LocalStore(tmp_path).create()
    store.put("run/a", b"x")
    (tmp_path / ".segue-store").unlink()
    old = LocalStore(tmp_path)
    with pytest.raises(MissingObjectError):
        old.get("run/b")
    old.put("run/b", b"y")
    old.check()
    assert (tmp_path / ".segue-store").exists()
    assert [item.key for item in old.list_objects("")] == ["run/a", "run/b"]


def test_nothing_is_made_before_the_store_is_created(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    assert store.folders() == []
    for read in (lambda: store.list_objects(""), lambda: store.get("a"), lambda: store.put("a", b"")):
        with pytest.raises(StoreGoneError):
            read()
    assert not store.root.exists()


def test_a_folder_without_hard_links_is_refused_with_the_way_to_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As s3fs answers."""

    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreUnreachableError, match=r"has no hard links. Fix: .* the URL of the bucket"):
        LocalStore(tmp_path / "mounted").create()


def test_an_object_that_another_machine_replaced_on_nfs_is_read_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS reports ESTALE if the file was replaced between open and read; see docs/storage.md."""
    store.put("beat", b"new")
    read, stale = Path.read_bytes, [errno.ESTALE]

    def read_bytes(path: Path) -> bytes:
        if path.name == "beat" and stale:
            raise OSError(stale.pop(), "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert store.get("beat") == b"new"
    stale += [errno.EIO]
    with pytest.raises(StoreReadError):
        store.get("beat")


def test_a_listing_follows_no_link_out_of_the_store(store: LocalStore, tmp_path: Path) -> None:
    store.put("run/a", b"x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("x")
    (store.root / "run" / "way-out").symlink_to(tmp_path / "elsewhere")
    assert store.list_objects("") == [("run/a", 1)]


def test_urls_of_folders_name_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a b" / "store"
    for url in (folder, str(folder), folder.as_uri(), f"file://localhost{folder.as_posix()}", "a b/store"):
        assert open_store(url).url == open_store(StoreSpec(url=str(url))).url == str(folder)


@pytest.mark.parametrize(
    "url",
    ["file://relative/store", "hdfs://bucket/x", "https://host/x", "file://me:pass@host/x", "gs:bucket", "runs:2026/x"],
)
def test_other_urls_are_refused_with_the_fix_and_without_their_secret(url: str) -> None:
    with pytest.raises(
        StoreUnreachableError, match=r"Fix: give a folder, file:///folder, s3://bucket/prefix, gs://"
    ) as raised:
        open_store(url)
    assert "pass" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3:/models/x", "s3:models/x", "S3:/models/x", "file:/x", "file:x"])
def test_a_url_without_its_two_slashes_is_refused_and_not_taken_for_a_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnreachableError, match="must be followed by two slashes") as raised:
        open_store(url)
    assert raised.value.fix is not None
    assert raised.value.fix.endswith(f"a folder of that name is ./{url}")
    assert open_store(f"./{url}").url == str(tmp_path / url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["C:/models", r"C:\\models", "a:b", "./a:b", "/a:/b", "models"])
def test_a_drive_letter_or_a_colon_behind_a_slash_is_no_scheme(folder: str) -> None:
    assert not is_url(folder)
    assert isinstance(open_store(folder), LocalStore)
