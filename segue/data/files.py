"""Files of a run on this machine: remote ones are copied first, and each is read once in full to prove its content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from segue.errors import DataChangedError, DataUnreadableError, MissingExtraError
from segue.spec import DataFile, DataSpec, RunSpec

_BLOCK_BYTES = 4 * 2**20


def is_remote(path: str) -> bool:
    """Whether a file is read through a network."""
    return "://" in path and not path.startswith("file://")


def checked_copies(data: DataSpec) -> list[Path]:
    """Every file of the run on this machine, in order. Each has been read in full, and has the content of the spec.

    A local file stays where it is. Of a remote one there is a copy in the cache folder, named by its hash, which other
    runs and later segments use again; a crash leaves no copy with other content under that name.

    Raises:
        DataChangedError: a file has other content than when the run began.
        DataUnreadableError: a file is missing, or could not be read.
        MissingExtraError: s3fs is not installed.
    """
    return [_checked_copy(file, data) for file in data.files]


def recipe_config(spec: RunSpec) -> dict[str, Any]:
    """What a recipe is built with: the spec's config, and with data its files as `data`, a list of paths.

    Raises:
        DataChangedError, DataUnreadableError, MissingExtraError: as `checked_copies`.
    """
    return (
        spec.config if spec.data is None else spec.config | {"data": [str(each) for each in checked_copies(spec.data)]}
    )


def _checked_copy(file: DataFile, data: DataSpec) -> Path:
    if not is_remote(file.path):
        path = Path(file.path.removeprefix("file://"))
        _check(file, hash_of(str(path), data))
        return path
    folder = _cache_folder(data)
    kept = folder / (file.sha256 + "".join(PurePosixPath(file.path).suffixes[-2:]))
    with _lock(folder / f"{file.sha256}.lock"):  # Ranks and runs of one machine copy it once.
        if kept.exists() and hash_of(str(kept), data) == file.sha256:
            return kept
        _copy(file, data, to=kept)
    return kept


def hash_of(path: str, data: DataSpec | None = None, *, into: IO[bytes] | None = None) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; with `into`, they are also written there.

    Raises:
        DataUnreadableError: it is missing, or could not be read.
        MissingExtraError: s3fs is not installed.
    """
    hasher = hashlib.sha256()
    with opened(path, data) as source:
        while block := source.read(_BLOCK_BYTES):
            hasher.update(block)
            if into is not None:
                into.write(block)
    return hasher.hexdigest()


@contextmanager
def opened(path: str, data: DataSpec | None = None) -> Iterator[IO[bytes]]:
    """A file for reading, wherever it is.

    Raises:
        DataUnreadableError: it is missing, or could not be read; also where the block finds that out.
        MissingExtraError: s3fs is not installed.
    """
    with readable(path):
        if not is_remote(path):
            with Path(path.removeprefix("file://")).open("rb") as file:
                yield file
            return
        with file_system(path, data).open(path, "rb") as file:
            yield file


def file_system(path: str, data: DataSpec | None) -> Any:
    """The fsspec file system of a remote path.

    Raises:
        MissingExtraError: s3fs is not installed.
    """
    try:
        import fsspec

        is_s3 = path.startswith(("s3://", "s3a://"))
        options = {"endpoint_url": data.endpoint_url} if is_s3 and data is not None and data.endpoint_url else {}
        return fsspec.url_to_fs(path, **options)[0]
    except ImportError as error:
        raise MissingExtraError(extra="s3", needed_for=f"Reading {path}") from error


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what reading a path raises into a DataUnreadableError that names it."""
    try:
        yield
    except (OSError, ValueError) as error:  # fsspec raises a ValueError for a protocol that it does not know.
        raise DataUnreadableError(path=path, why=_why(error)) from error
    except Exception as error:
        # What botocore raises before a request, such as for missing credentials, has no type in common with the rest.
        if not type(error).__module__.startswith(("botocore.", "aiobotocore.")):
            raise
        raise DataUnreadableError(path=path, why=_why(error)) from error


def _why(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return str(getattr(error, "strerror", None) or error).rstrip(".") or type(error).__name__


def _copy(file: DataFile, data: DataSpec, *, to: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=to.parent, prefix=".copying-", delete=False) as copy:
        try:
            _check(file, hash_of(file.path, data, into=copy))
            copy.flush()
            Path(copy.name).replace(to)
        except BaseException:
            Path(copy.name).unlink(missing_ok=True)
            raise


def _check(file: DataFile, found: str) -> None:
    if found != file.sha256:
        raise DataChangedError(path=file.path, expected=file.sha256, found=found)


def _cache_folder(data: DataSpec) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(data.cache_folder) if data.cache_folder else base / "segue" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
