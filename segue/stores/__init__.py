"""Opens stores of bytes with one small interface: a local folder, or a bucket on S3, Google Cloud or Azure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from segue.credentials import holds_credentials, masked
from segue.errors import StoreUnreachableError
from segue.stores.base import ObjectInfo, Store, StoreReadError, StoreWriteError
from segue.stores.local import LocalStore

if TYPE_CHECKING:
    from segue.spec import StoreSpec

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""Pattern of a URL scheme with at least two letters, because a single letter is a Windows drive."""

PLACES = "folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
"""The forms of a store's address, for messages."""

__all__ = ["LocalStore", "ObjectInfo", "Store", "StoreReadError", "StoreWriteError", "is_url", "open_store", "open_url"]


def is_url(store: str) -> bool:
    """Whether the text is a URL with any scheme. If it is not, the text is the path of a folder."""
    return _SCHEME.match(store) is not None


def open_store(spec: StoreSpec | str | Path) -> Store:
    """Return the store of a spec, URL or folder, without a request. Call `check()` to test the access.

    Raises:
        StoreUnreachableError: the URL is malformed, its scheme is not supported, or no credentials are found.
    """
    if isinstance(spec, str | Path):
        return open_url(str(spec))
    return open_url(spec.url, endpoint_url=spec.endpoint_url, region=spec.region)


def open_url(url: str, *, endpoint_url: str | None = None, region: str | None = None) -> Store:
    """Open a store from the fields of a store spec, for processes that start without pydantic."""
    if not is_url(url):
        return LocalStore(Path(url))
    parts = urlsplit(url)
    fix = f"give a {PLACES}."
    if "@" in parts.netloc or any(holds_credentials(given) for given in (url, endpoint_url or "")):
        # The text before the @ may be a secret, and every message contains the URL of the store.
        why = "the URL and the endpoint may not contain credentials; segue reads credentials from the environment."
        raise StoreUnreachableError(url=masked(url), why=why, fix=fix)
    if parts.scheme not in {"file", "s3", "gs", "az"}:
        raise StoreUnreachableError(url=url, why=f"{parts.scheme}:// is not a supported kind of store.", fix=fix)
    if not url.startswith(f"{url.partition(':')[0]}://"):
        why = f"{parts.scheme}: must be followed by two slashes."
        raise StoreUnreachableError(url=url, why=why, fix=f"{fix[:-1]}; a folder of that name is ./{url}")
    if parts.scheme == "file":
        return _folder(parts, url, fix=fix)
    return _bucket(parts.scheme, url, endpoint_url=endpoint_url, region=region)


def _bucket(scheme: str, url: str, *, endpoint_url: str | None, region: str | None) -> Store:
    """Return the store in a bucket.

    The function imports only the module of the URL's scheme, because each module needs a different extra.
    """
    if scheme == "s3":
        from segue.stores import s3

        return s3.from_url(url, endpoint_url=endpoint_url, region=region)
    if region is not None:
        why = f"a region can be set only for s3://, not for {scheme}://; the cloud knows the location of the bucket."
        raise StoreUnreachableError(url=url, why=why, fix="remove [store] region.")
    if scheme == "gs":
        from segue.stores import gcs

        return gcs.from_url(url, endpoint_url=endpoint_url)
    from segue.stores import azure

    return azure.from_url(url, endpoint_url=endpoint_url)


def _folder(parts: SplitResult, url: str, *, fix: str) -> LocalStore:
    if parts.netloc not in {"", "localhost"}:
        why = f"{parts.netloc!r} is the name of a machine in this URL, not of a folder."
        raise StoreUnreachableError(url=url, why=why, fix=fix)
    return LocalStore(Path(unquote(parts.path)))
