"""Makes the files of a run available on this machine.

segue copies remote files, and reads each file once in full to check its hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from segue.errors import DataChangedError, DataUnreadableError, MissingExtraError
from segue.spec import DataAccess, DataFile, DataSpec

_BLOCK_BYTES = 4 * 2**20
_DEFAULT = DataAccess()
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Maps each URL scheme to the extra that installs the file system for this scheme: s3fs, gcsfs or adlfs."""
_CLIENTS = ("botocore.", "aiobotocore.", "gcsfs.", "google.", "azure.", "aiohttp.")
"""Packages that the file systems s3fs, gcsfs and adlfs use. The errors of these packages have no common type."""
_MARKS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated")
"""Names of a listing's entries that get another value if the content of a file changes."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
"""Entries of a listing that contain the time of a file's last write."""


def is_remote(path: str) -> bool:
    """Whether segue reads the file at this path over a network."""
    return "://" in path and not path.startswith("file://")


def checked_copies(data: DataSpec) -> list[Path]:
    """Return the local paths of the run's files, in order, after a check of each file's hash against the spec.

    A local file is not copied. A remote file is copied into the cache folder. The name of the copy is the hash of the
    file. Other runs and later segments use this copy. Even after a crash, no copy with wrong content has this name.

    Raises:
        DataChangedError: the content of a file has changed since the run began.
        DataUnreadableError: a file is missing, or could not be read.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    return [_checked_copy(file, data) for file in data.files]


def find(pattern: str, access: DataAccess = _DEFAULT) -> list[str]:
    """Return the files of a path, of a glob, or of a folder that ends with '/', sorted.

    If no file matches, the result is empty. Files whose names begin with '_' or '.', such as _SUCCESS, are not
    returned.

    Raises:
        DataUnreadableError: the files could not be listed, or a file's name is not safe to open.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    return [each.path for each in listed(pattern, access)]


class Listed(NamedTuple):
    """A file as a listing describes it. The file itself is not read."""

    path: str
    size_bytes: int
    mark: str
    """A value that changes with the file's content.

    The value is an entity tag, a generation, or the time of the last write.
    """


def listed(pattern: str, access: DataAccess = _DEFAULT) -> list[Listed]:
    """Return the files that `find` returns, each with a value that changes if the file changes.

    Raises:
        DataUnreadableError: the files could not be listed, or a file's name is not safe to open.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    with readable(pattern):
        system = file_system(pattern, access)
        found = system.glob(f"{pattern}**" if pattern.endswith("/") else pattern, detail=True)
    # For a folder, consoles create an empty object whose name ends with '/'.
    files = {
        name: info
        for name, info in found.items()
        if info["type"] == "file" and not name.rpartition("/")[2].startswith(("_", ".")) and not name.endswith("/")
    }
    odd = next((name for name in files if "::" in name), None)
    if odd is not None:  # fsspec would open another file system for such a name.
        raise DataUnreadableError(path=odd, why="its name contains '::'")

    def named(name: str) -> str:
        if not is_remote(pattern):
            return name
        # The given scheme is kept: adlfs has several schemes, and returns only one of them.
        return f"{pattern.partition('://')[0]}://{system.unstrip_protocol(name).partition('://')[2]}"

    return sorted(Listed(named(name), int(info.get("size") or 0), _mark(info)) for name, info in files.items())


def written_at(folder: str, access: DataAccess = _DEFAULT) -> dict[str, datetime | None]:
    """Return the time of the last write of each file in a folder, by file name.

    The result includes files that `find` does not return. If the file system does not record the time of the last
    write, the value is None.

    Raises:
        DataUnreadableError: the files could not be listed.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    with readable(folder):
        found = file_system(folder, access).ls(folder, detail=True)
        return {info["name"].rpartition("/")[2]: _time(info) for info in found if info["type"] == "file"}


def _time(info: Mapping[str, Any]) -> datetime | None:
    time = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, int | float):
        return datetime.fromtimestamp(time, UTC)
    if isinstance(time, datetime):
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return None


def _mark(info: Mapping[str, Any]) -> str:
    return next((f"{name}={info[name]}" for name in _MARKS if info.get(name)), "")


def fetch(path: str, access: DataAccess = _DEFAULT) -> tuple[DataFile, Path]:
    """Return the record of a file's current content, and the file's local path.

    A remote file is copied into the cache folder.

    Raises:
        DataUnreadableError: the file is missing, could not be read, or was written to during the read.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    with readable(path):
        system = file_system(path, access)
        before = system.ukey(path)
        if is_remote(path):
            with _temporary(_cache_folder(access)) as copy:
                sha256 = hash_of(path, access, into=copy)
                local = Path(copy.name).replace(_cached(path, sha256, access))
        else:
            local = Path(path)
            sha256 = hash_of(path)
        if system.ukey(path) != before:
            raise DataUnreadableError(path=path, why="it was written to while it was read")
    return DataFile(path=path, sha256=sha256, size_bytes=local.stat().st_size), local


def _checked_copy(file: DataFile, access: DataAccess) -> Path:
    if not is_remote(file.path):
        path = Path(file.path.removeprefix("file://"))
        _check(file, hash_of(str(path), access))
        return path
    kept = _cached(file.path, file.sha256, access)
    with _lock(kept.with_name(f"{file.sha256}.lock")):  # The ranks and runs of one machine copy the file only once.
        if kept.exists() and hash_of(str(kept)) == file.sha256:
            return kept
        with _temporary(kept.parent) as copy:
            _check(file, hash_of(file.path, access, into=copy))
            return Path(copy.name).replace(kept)


def hash_of(path: str, access: DataAccess = _DEFAULT, *, into: IO[bytes] | None = None) -> str:
    """Return the SHA-256 hash of a file's bytes, in hexadecimal.

    If `into` is given, the bytes are also written to `into`.

    Raises:
        DataUnreadableError: the file is missing, or could not be read.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    hasher = hashlib.sha256()
    with opened(path, access) as source:
        while block := source.read(_BLOCK_BYTES):
            hasher.update(block)
            if into is not None:
                into.write(block)
    if into is not None:
        into.flush()
    return hasher.hexdigest()


@contextmanager
def opened(path: str, access: DataAccess = _DEFAULT) -> Iterator[IO[bytes]]:
    """A block in which a local or remote file is open for reading.

    Raises:
        DataUnreadableError: the file is missing or could not be read, at the beginning or inside the block.
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    with readable(path):
        if not is_remote(path):
            with Path(path.removeprefix("file://")).open("rb") as file:
                yield file
            return
        with file_system(path, access).open(path, "rb") as file:
            yield file


def file_system(path: str, access: DataAccess) -> Any:
    """The fsspec file system of a path.

    Raises:
        MissingExtraError: the extra package for files at this kind of address is not installed.
    """
    extra = _EXTRAS.get(path.partition("://")[0])
    try:
        import fsspec

        options = {"endpoint_url": access.endpoint_url} if extra == "s3" and access.endpoint_url else {}
        # Listings are not cached: a process that lives for weeks must see new files.
        return fsspec.url_to_fs(path, use_listings_cache=False, **options)[0]
    except ImportError as error:
        raise MissingExtraError(extra=extra or "s3", needed_for=f"Reading {path}") from error


@contextmanager
def readable(path: str) -> Iterator[None]:
    """A block that turns each error in reading a path into a DataUnreadableError that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:  # fsspec raises a ValueError for an unknown protocol.
        raise DataUnreadableError(path=path, why=_why(error)) from error
    except Exception as error:
        # Such an error is raised, for example, for missing credentials before a request.
        if not type(error).__module__.startswith(_CLIENTS):
            raise
        raise DataUnreadableError(path=path, why=_why(error)) from error


def _why(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return str(getattr(error, "strerror", None) or error).rstrip(".") or type(error).__name__


@contextmanager
def _temporary(folder: Path) -> Iterator[IO[bytes]]:
    """Provide a new file in this folder. If the block does not rename the file, the file is removed at the end of the
    block."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".copying-", delete=False) as copy:
        try:
            yield copy
        finally:
            Path(copy.name).unlink(missing_ok=True)


def _cached(path: str, sha256: str, access: DataAccess) -> Path:
    # The suffixes give the format of the file.
    return _cache_folder(access) / (sha256 + "".join(PurePosixPath(path).suffixes[-2:]))


def _check(file: DataFile, found: str) -> None:
    if found != file.sha256:
        raise DataChangedError(path=file.path, expected=file.sha256, found=found)


def _cache_folder(access: DataAccess) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(access.cache_folder) if access.cache_folder else base / "segue" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
