"""Stores of the chaos benchmark: a folder that can be unmounted and filled, and S3 behind a gate."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from benchmarks.chaos.gate import OPEN, Gate, Manner
from benchmarks.crash.places import made_up_keys, moto_server, new_bucket
from segue.spec import StoreSpec
from segue.stores import LocalStore, Store, open_store

_DISK_BYTES = 256 * 2**20


class Place(Protocol):
    """One store for many runs. The store can fail."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> StoreSpec:
        """The store as the runs use it."""
        ...

    @property
    def can_be_filled(self) -> bool: ...

    def store(self) -> Store:
        """The same store over a connection that no fault affects."""
        ...

    def take_away(self) -> None: ...

    def bring_back(self) -> None: ...


class FolderPlace:
    """A folder. With root rights, the folder is on a separate disk (tmpfs), which the fault unmounts. Without root
    rights, the fault renames the folder."""

    name = "folder"

    def __init__(self, base: Path, *, is_mounted: bool) -> None:
        self._base, self._is_mounted = base, is_mounted
        self._root, self._disk = base / "store", base / "disk"
        self._is_away = False

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(url=str(self._root))

    @property
    def can_be_filled(self) -> bool:
        return self._is_mounted

    def store(self) -> Store:
        if self._is_mounted:
            return LocalStore(self._disk / "store")
        return LocalStore(self._base / "away" if self._is_away else self._root)

    def take_away(self) -> None:
        self._is_away = True
        if self._is_mounted:
            _run("umount", "--lazy", str(self._root))
        else:
            self._root.rename(self._base / "away")

    def bring_back(self) -> None:
        if self._is_mounted:
            _run("mount", "--bind", str(self._disk / "store"), str(self._root))
        else:
            (self._base / "away").rename(self._root)
        self._is_away = False

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self._disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            size_bytes = 2**20
            while size_bytes:
                try:
                    file.write(bytes(size_bytes))
                except OSError:
                    size_bytes //= 2

    def empty(self) -> None:
        """Free the disk space again."""
        (self._disk / "filler").unlink(missing_ok=True)


class S3Place:
    """A bucket on moto's server, which the runs reach through a gate."""

    name, can_be_filled = "s3", False

    def __init__(self, *, bucket: str, url: str, gate: Gate) -> None:
        self._bucket, self._url, self._gate = bucket, url, gate

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(url=f"s3://{self._bucket}/runs", endpoint_url=self._gate.url, region="us-east-1")

    def store(self) -> Store:
        return open_store(StoreSpec(url=f"s3://{self._bucket}/runs", endpoint_url=self._url, region="us-east-1"))

    def take_away(self) -> None:
        self.behave(Manner(cuts=True))

    def bring_back(self) -> None:
        self.behave(OPEN)

    def behave(self, manner: Manner) -> None:
        self._gate.behave(manner)


@contextmanager
def folder_place(base: Path) -> Iterator[FolderPlace]:
    """A store in a folder below `base`. At the end, nothing stays mounted."""
    is_mounted = os.geteuid() == 0 and shutil.which("mount") is not None and _mount(base)
    place = FolderPlace(base, is_mounted=is_mounted)
    (base / "store").mkdir(parents=True, exist_ok=True)
    try:
        if is_mounted:
            (base / "disk" / "store").mkdir()
            place.bring_back()
        yield place
    finally:
        if is_mounted:
            for name in ("store", "disk"):
                subprocess.run(["umount", "--lazy", str(base / name)], check=False, capture_output=True)


@contextmanager
def s3_place() -> Iterator[S3Place]:
    """A bucket on a separate moto server. During the block, the environment has made-up credentials."""
    with made_up_keys(), moto_server() as url, new_bucket(url) as bucket:
        port = urlsplit(url).port
        assert port is not None
        with Gate(lambda: port) as gate:
            yield S3Place(bucket=bucket, url=url, gate=gate)


def _mount(base: Path) -> bool:
    """Whether a disk could be mounted; containers may not be allowed to."""
    disk = base / "disk"
    disk.mkdir(parents=True)
    options = f"size={_DISK_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "segue-chaos", str(disk)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
