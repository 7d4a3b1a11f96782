"""Bytes: a local directory or an S3 bucket behind one small contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from segue.errors import StoreUnreachableError
from segue.stores.base import ObjectInfo, Store, StoreReadError, StoreWriteError
from segue.stores.local import LocalStore

if TYPE_CHECKING:
    from segue.spec import StoreSpec

__all__ = ["LocalStore", "ObjectInfo", "Store", "StoreReadError", "StoreWriteError", "open_store", "open_url"]


def open_store(spec: StoreSpec | str | Path) -> Store:
    """The store that a spec, URL or folder names. Nothing is touched yet; `check()` does that.

    Raises:
        StoreUnreachableError: the URL is of a kind segue does not know, or no credentials are found.
    """
    if isinstance(spec, str | Path):
        return open_url(str(spec))
    return open_url(spec.url, endpoint_url=spec.endpoint_url, region=spec.region)


def open_url(url: str, *, endpoint_url: str | None = None, region: str | None = None) -> Store:
    """The same, by the fields of a store spec: for a process that has to start without pydantic."""
    parts = urlsplit(url)
    fix = "Give a folder, file:///folder or s3://bucket/prefix."
    if "@" in parts.netloc:
        # What stands before it may be a secret, and a store's URL is shown in every message.
        shown = f"{parts.scheme}://...@{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise StoreUnreachableError(url=shown, why="may not carry credentials; boto3 finds them.", fix=fix)
    if parts.scheme == "s3":
        from segue.stores import s3

        return s3.from_url(url, endpoint_url=endpoint_url, region=region)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"}:
            why = f"{parts.netloc!r} is read as a machine's name, not as a folder."
            raise StoreUnreachableError(url=url, why=why, fix=fix)
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "":
        return LocalStore(Path(url))
    raise StoreUnreachableError(url=url, why=f"{parts.scheme}:// is not a kind of store segue knows.", fix=fix)
