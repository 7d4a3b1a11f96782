"""Large files around the page cache: byte for byte the same as through it, whatever the size, place and memory."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.stores.direct_io import PAGE_BYTES, READ_BYTES, WRITE_BYTES, page_buffer, read_into, write_new
from tests.stores.test_local import full_disk

SIZES = [
    0,
    1,
    511,
    PAGE_BYTES - 1,
    PAGE_BYTES,
    PAGE_BYTES + 1,
    3 * PAGE_BYTES + 512,
    READ_BYTES + 1,
    *(
        pytest.param(size_bytes, marks=pytest.mark.matrix)
        for size_bytes in (READ_BYTES - 1, READ_BYTES, 2 * READ_BYTES + PAGE_BYTES + 13)
    ),
]
STARTS = [0, 1, 512, PAGE_BYTES, PAGE_BYTES + 1]


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk, and one on a file system in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm on this system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def in_memory(data: bytes, *, shift: int) -> memoryview:
    """The bytes in writable memory that begins so far behind a page."""
    memory = page_buffer(len(data) + shift)
    memory[shift:] = data
    return memory[shift:]


def file_of(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("shift", [0, 1, 512])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_written_is_what_a_plain_read_finds(folder: Path, size_bytes: int, shift: int) -> None:
    data = noise(size_bytes)
    write_new(folder / "file", in_memory(data, shift=shift))
    assert (folder / "file").read_bytes() == data


@pytest.mark.matrix
@pytest.mark.parametrize("shift", [0, 512])
@pytest.mark.parametrize("size_bytes", [WRITE_BYTES, WRITE_BYTES + 1, 2 * WRITE_BYTES + PAGE_BYTES + 13])
def test_what_takes_several_writes_is_whole_too(folder: Path, size_bytes: int, shift: int) -> None:
    data = noise(size_bytes)
    write_new(folder / "file", in_memory(data, shift=shift))
    assert (folder / "file").read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"x", noise(PAGE_BYTES), noise(READ_BYTES + 5)], ids=len)
def test_memory_that_may_only_be_read_can_be_written_from(folder: Path, data: bytes) -> None:
    write_new(folder / "file", memoryview(data))
    assert (folder / "file").read_bytes() == data


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_read_is_what_a_plain_write_left(folder: Path, size_bytes: int) -> None:
    data = noise(size_bytes)
    path = file_of(folder, data)
    for start in (*STARTS, max(size_bytes - 1, 0), size_bytes, size_bytes + 1, size_bytes + 3 * PAGE_BYTES):
        for wanted in (0, 100, PAGE_BYTES, size_bytes // 2 + 7, size_bytes + PAGE_BYTES + 1):
            into = page_buffer(wanted)
            assert read_into(path, start, into) == len(data[start : start + wanted]), (start, wanted)
            assert into[: len(data[start : start + wanted])] == data[start : start + wanted], (start, wanted)


@pytest.mark.parametrize("shift", [1, 512, PAGE_BYTES - 1])
def test_memory_that_begins_anywhere_is_filled_too(folder: Path, shift: int) -> None:
    data = noise(READ_BYTES + 3 * PAGE_BYTES + 77)
    path = file_of(folder, data)
    for start in (0, 5, PAGE_BYTES):
        into = in_memory(bytes(len(data)), shift=shift)
        assert read_into(path, start, into) == len(data) - start
        assert into[: len(data) - start] == data[start:]


def test_nothing_is_written_behind_what_was_read(folder: Path) -> None:
    data = noise(2 * PAGE_BYTES + 9)
    path = file_of(folder, data)
    whole = page_buffer(8 * PAGE_BYTES)
    whole[:] = b"\xaa" * len(whole)
    assert read_into(path, 0, whole[: len(data) - 4]) == len(data) - 4
    assert whole[: len(data) - 4] == data[:-4]
    assert bytes(whole[len(data) - 4 :]) == b"\xaa" * (len(whole) - len(data) + 4)


def test_a_part_of_a_larger_memory_is_written_alone(folder: Path) -> None:
    whole = in_memory(noise(6 * PAGE_BYTES), shift=0)
    for number, (start, stop) in enumerate([(0, PAGE_BYTES), (PAGE_BYTES, 3 * PAGE_BYTES + 1), (7, 2 * PAGE_BYTES)]):
        write_new(folder / str(number), whole[start:stop])
        assert (folder / str(number)).read_bytes() == bytes(whole[start:stop])


def test_a_file_that_is_there_is_not_touched(folder: Path) -> None:
    path = file_of(folder, b"before")
    with pytest.raises(FileExistsError):
        write_new(path, in_memory(noise(2 * PAGE_BYTES), shift=0))
    assert path.read_bytes() == b"before"


def test_what_is_not_there_cannot_be_read_or_written_below(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_into(folder / "nothing", 0, page_buffer(PAGE_BYTES))
    with pytest.raises(FileNotFoundError):
        write_new(folder / "nothing" / "file", page_buffer(PAGE_BYTES))


def test_a_folder_is_no_file(folder: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_into(folder, 0, page_buffer(PAGE_BYTES))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("limit_bytes", [0, PAGE_BYTES, 2 * PAGE_BYTES + 100])
def test_a_full_disk_is_an_error_and_not_a_short_file(folder: Path, limit_bytes: int, shift: int) -> None:
    data = in_memory(noise(4 * PAGE_BYTES + 5), shift=shift)
    with pytest.raises(OSError, match="File too large"), full_disk(limit_bytes):
        write_new(folder / "file", data)
    write_new(folder / "another", data)  # Nothing of it lasts.
    assert (folder / "another").read_bytes() == bytes(data)


def test_many_readers_at_once_each_get_their_own_part(folder: Path) -> None:
    data = noise(16 * PAGE_BYTES + 3)
    path = file_of(folder, data)
    whole = page_buffer(len(data))

    def read(part: int) -> None:
        for _ in range(50):
            start = part * 4 * PAGE_BYTES
            read_into(path, start, whole[start : start + 4 * PAGE_BYTES])

    readers = [threading.Thread(target=read, args=(part,)) for part in range(5)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert whole == data


def test_no_descriptor_stays_open_whatever_happens(folder: Path) -> None:
    path, data = file_of(folder, noise(PAGE_BYTES + 1)), in_memory(noise(2 * PAGE_BYTES), shift=0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        read_into(path, 0, page_buffer(2 * PAGE_BYTES))
        write_new(folder / f"new{number}", data)
        with pytest.raises(FileExistsError):
            write_new(path, data)
        with pytest.raises(OSError, match="File too large"), full_disk(PAGE_BYTES):
            write_new(folder / f"full{number}", data)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("size_bytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 5 * PAGE_BYTES + 1])
def test_a_page_buffer_is_empty_memory_of_that_size_on_a_page(size_bytes: int) -> None:
    memory = page_buffer(size_bytes)
    assert (len(memory), memory.readonly) == (size_bytes, False)
    assert not any(memory)
