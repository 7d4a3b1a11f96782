"""A store in a local folder, with fsync for files and folders, and with hard links for put-if-absent."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from segue.errors import MissingObjectError, StoreUnreachableError
from segue.stores import direct_io
from segue.stores.base import (
    MARKER,
    STAGED,
    ObjectInfo,
    StoreGoneError,
    StoreReadError,
    StoreWriteError,
    check_by_writing,
    checked_key,
    checked_range,
    is_key,
)
from segue.stores.mounts import mount_of

_LARGE_BYTES = 2**20
"""The store writes durable objects of at least this number of bytes without the page cache."""

_IN_MEMORY = ("tmpfs", "ramfs")
_MOST_SYNCED = 1000
"""Maximum number of synced folders to remember. Each checkpoint has its own folder."""
_TRIES = 100
"""Number of tries to create a folder, because other processes may remove the folder while it is empty."""


class LocalStore:
    """Objects as files below the folder `root`.

    The store works on any file system with hard links and atomic rename. The method `create` writes a marker file with
    a uuid. Every write, and every read that finds no object, checks that the marker exists and is unchanged. If the
    folder was unmounted, renamed or replaced, the result is therefore an error, and never an empty store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._known: bytes | None = None
        self._synced: set[Path] = set()
        """Folders whose entries were synced and therefore survive a power cut."""

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def is_remote(self) -> bool:
        return False

    def create(self) -> Self:
        """If the folder is not a store yet, make it a store. Return this store.

        Raises:
            StoreUnreachableError: the folder cannot be created or written.
        """
        try:
            _make_folders(self.root)
            marker = self.root / MARKER
            if not marker.exists():
                staged = self.root / f"{STAGED}{uuid.uuid4().hex}"
                _write_small(staged, uuid.uuid4().hex.encode(), durable=True)
                with suppress(FileExistsError):  # Another process has just created the same store.
                    os.link(staged, marker)
                staged.unlink()
                _sync_folder(self.root)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                why, fix = "the file system has no hard links.", "for a mounted bucket, give the URL of the bucket."
            else:
                why = f"the folder cannot be created ({error.strerror})."
                fix = "use --store or [store] url to give a folder that you may write to."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None
        self._require_marker()
        return self

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._staged(path, data, durable=True) as staged:
            try:
                # A link is atomic and never replaces a file. The bytes were synced before the link, so a reader sees
                # either all bytes or no object.
                os.link(staged, path)
            except FileExistsError:
                return False
            finally:
                staged.unlink()
            _sync_folder(path.parent)
        return True

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        path = self._path(key)
        with self._staged(path, memoryview(data).cast("B"), durable=durable) as staged:
            staged.replace(path)
            if durable:
                _sync_folder(path.parent)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            try:
                return self._path(key).read_bytes()
            except OSError as error:
                # On NFS, another machine has replaced the object between the opening and the read.
                if error.errno != errno.ESTALE:
                    raise
                return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        start, length = checked_range(start, length)
        with self._reading(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        checked_range(start, len(into))
        with self._reading(key):
            return direct_io.read_into(self._path(key), start, into)

    def size(self, key: str) -> int:
        with self._reading(key):
            found = self._path(key).stat()
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder", key)
            return found.st_size

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        folder = self._path(prefix.rstrip("/")) if prefix else self.root
        found = []
        # An unreadable folder must not look empty, or the next record would be written to a slot that is in use.
        with self._reading(prefix or "/"):
            for directory, _, names in os.walk(folder, onerror=_raise_unless_gone):
                above = Path(directory).relative_to(self.root)
                for key in ((above / name).as_posix() for name in names):
                    with suppress(FileNotFoundError):  # The object was deleted between the walk and the stat.
                        if (after is None or key > after) and is_key(key):
                            found.append(ObjectInfo(key, (self.root / key).stat().st_size))
        if not found:
            self._require_marker()
        return sorted(found)

    def folders(self) -> list[str]:
        if not self.root.is_dir():
            return []
        with self._reading("/"):
            return sorted(path.name for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))

    def delete(self, keys: list[str]) -> None:
        self._require_marker()
        for key in keys:
            path = self._path(key)
            try:
                path.unlink()
                self._drop_empty_folders(path.parent)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue  # There is no object with this key.
            except OSError as error:
                raise StoreWriteError(url=self.url, key=key, why=error.strerror or str(error)) from error

    def drop_unfinished(self, prefix: str) -> None:
        folder = self._path(prefix.rstrip("/"))
        with self._reading(prefix):
            for directory, _, names in os.walk(folder, onerror=_raise_unless_gone):
                for path in (Path(directory, name) for name in names if name.startswith(STAGED)):
                    path.unlink(missing_ok=True)
                    self._drop_empty_folders(path.parent)

    def check(self) -> None:
        self.create()
        check_by_writing(self)

    def reach(self) -> None:
        self.create()

    def modified_at(self, key: str) -> datetime:
        with self._reading(key):
            return datetime.fromtimestamp(self._path(key).stat().st_mtime, UTC)

    def removed_by(self) -> str | None:
        kind = mount_of(self.root).kind
        return f"the folder is on {kind}, which is emptied at a restart of the machine" if kind in _IN_MEMORY else None

    def afresh(self) -> LocalStore:
        return _Uncached(self.root)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _require_marker(self) -> None:
        """Raise an error if the folder is missing or is now another store.

        A store of version 0.1 has no marker until its next `check`. If the folder contains runs, no marker is needed.
        """
        try:
            marker = (self.root / MARKER).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if self._known is None and self.folders():
                return
            raise StoreGoneError(url=self.url, why="the folder is missing (unmounted, renamed or deleted?)") from None
        except OSError as error:
            raise StoreGoneError(url=self.url, why=f"the folder cannot be read ({error.strerror})") from None
        self._known = self._known or marker
        if marker != self._known:
            raise StoreGoneError(url=self.url, why="the folder is another store now")

    @contextmanager
    def _staged(self, path: Path, data: bytes | memoryview, *, durable: bool) -> Iterator[Path]:
        staged = path.parent / f"{STAGED}{uuid.uuid4().hex}"
        try:
            self._require_marker()
            try:
                if durable and len(data) >= _LARGE_BYTES:
                    self._make_new(staged, lambda: direct_io.write_new(staged, memoryview(data)), durable=True)
                else:
                    self._make_new(staged, lambda: _write_small(staged, data, durable=durable), durable=durable)
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
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._require_marker()
            raise MissingObjectError(key=key) from None
        except OSError as error:
            raise StoreReadError(url=self.url, key=key, why=error.strerror or str(error)) from error

    def _make_new(self, path: Path, make: Callable[[], None], *, durable: bool) -> None:
        tries = 0
        while True:
            try:
                self._make_folder(path.parent, durable=durable)
                return make()
            except (FileNotFoundError, FileExistsError):
                # Another process has just removed the empty folder, so create the folder again.
                tries += 1
                if tries == _TRIES:
                    raise

    def _make_folder(self, folder: Path, *, durable: bool) -> None:
        if folder == self.root:  # Only `create` makes the root.
            return
        # Another process may have made an existing folder without syncing it.
        if folder.is_dir() and (not durable or folder in self._synced):
            return
        self._make_folder(folder.parent, durable=durable)
        folder.mkdir(exist_ok=True)
        if durable:
            _sync_folder(folder.parent)
            if len(self._synced) == _MOST_SYNCED:
                self._synced.clear()
            self._synced.add(folder)

    def _drop_empty_folders(self, folder: Path) -> None:
        while folder != self.root and folder.is_relative_to(self.root):
            try:
                folder.rmdir()
            except OSError:
                return  # Usually the folder is not empty. After another error, a harmless empty folder remains.
            folder = folder.parent


class _Uncached(LocalStore):
    """The store with reads from the disk: each read first removes the file from the page cache."""

    def get(self, key: str) -> bytes:
        self._forget(key)
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._forget(key)
        return super().get_range(key, start, length)

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        self._forget(key)
        return super().read_into(key, start, into)

    def _forget(self, key: str) -> None:
        if not hasattr(os, "posix_fadvise"):  # macOS has no posix_fadvise.
            return
        with self._reading(key), self._path(key).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write_small(path: Path, data: bytes | memoryview, *, durable: bool) -> None:
    with path.open("xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _make_folders(folder: Path) -> None:
    """Create a folder and its parents, and sync them, so that they survive a power cut."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
