"""Copies the Data Docs of a slot's check into the store, and out of the store."""

from __future__ import annotations

from pathlib import Path

from segue.errors import NoDocsError
from segue.runlog import keys
from segue.stores.base import Store
from segue.stores.parallel import read_each

_MOST_FILE_BYTES = 64 * 2**20


def store_docs(store: Store, model: str, stamp: str, folder: Path) -> str:
    """Store every file of a site below the slot's prefix. Replace existing files. Return the prefix.

    Raises:
        StoreWriteError: some files may be missing. It is safe to call the function again.
    """
    prefix = keys.docs_prefix(model, stamp)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(prefix + path.relative_to(folder).as_posix(), path.read_bytes(), durable=False)
    return prefix


def fetch_docs(store: Store, prefix: str, into: Path) -> Path:
    """Write a site from the store into a folder. Return the path of its first page.

    Raises:
        NoDocsError: the store has no site below this prefix.
        StoreReadError: the store could not be read.
    """
    listed = store.list_objects(prefix)
    for key, data in read_each(store, listed, most_bytes=_MOST_FILE_BYTES):
        if data is None:
            continue
        path = into / key.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if not (into / "index.html").is_file():
        raise NoDocsError(where=f"{prefix} in {store.url}")
    return into / "index.html"
