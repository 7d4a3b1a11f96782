"""A store in a local directory: fsync of file and folder, put-if-absent by hard link."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from segue.errors import MissingObjectError, StoreUnreachableError
from segue.stores.base import ObjectInfo, StoreReadError, StoreWriteError, check_by_writing, checked_key

_STAGED = ".staged-"
"""Files being written. Readers never list them; a crash leaves them behind and nothing refers to them."""


class LocalStore:
    """Objects as files below `root`. Works on any file system that has hard links and atomic rename."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    @property
    def url(self) -> str:
        return str(self.root)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._staged(path, data, durable=True) as staged:
            try:
                # A link appears whole or not at all, and refuses to replace: the bytes were
                # synced before they had a name, so no reader ever sees a part of them.
                os.link(staged, path)
            except FileExistsError:
                return False
            finally:
                staged.unlink()
            _sync_folder(path.parent)
        return True

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        path = self._path(key)
        with self._staged(path, data, durable=durable) as staged:
            staged.replace(path)
            if durable:
                _sync_folder(path.parent)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def size(self, key: str) -> int:
        with self._reading(key):
            return self._path(key).stat().st_size

    def list_objects(self, prefix: str) -> list[ObjectInfo]:
        folder = self._path(prefix.rstrip("/")) if prefix else self.root
        found = []
        for directory, _, names in os.walk(folder):
            for name in names:
                if name.startswith(_STAGED):
                    continue
                path = Path(directory, name)
                try:
                    found.append(ObjectInfo(path.relative_to(self.root).as_posix(), path.stat().st_size))
                except FileNotFoundError:
                    continue  # Deleted between the walk and the stat: it is not there.
        return sorted(found)

    def folders(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            self._drop_empty_folders(path.parent)

    def check(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnreachableError(
                url=self.url,
                why=f"the folder cannot be made ({error.strerror}).",
                mend="Give a folder you may write to with --store or [store] url.",
            ) from None
        check_by_writing(self)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    @contextmanager
    def _staged(self, path: Path, data: bytes | memoryview, *, durable: bool) -> Iterator[Path]:
        staged = path.parent / f"{_STAGED}{uuid.uuid4().hex}"
        try:
            try:
                with _open_new(staged, durable=durable) as file:
                    file.write(data)
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
                yield staged
            except BaseException:
                staged.unlink(missing_ok=True)
                raise
        except OSError as error:
            why = error.strerror or str(error)
            raise StoreWriteError(url=self.url, key=path.relative_to(self.root).as_posix(), why=why) from error

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise MissingObjectError(key=key) from None
        except OSError as error:
            raise StoreReadError(url=self.url, key=key, why=error.strerror or str(error)) from error

    def _drop_empty_folders(self, folder: Path) -> None:
        while folder != self.root and folder.is_relative_to(self.root):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    return
                raise
            folder = folder.parent


def _open_new(path: Path, *, durable: bool) -> BinaryIO:
    while True:
        _make_folder(path.parent, durable=durable)
        try:
            return path.open("xb")
        except FileNotFoundError:
            continue  # Another process dropped the folder as empty just now: make it again.


def _make_folder(folder: Path, *, durable: bool) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent, durable=durable)
    folder.mkdir(exist_ok=True)
    if durable:
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
