"""Provides a temporary store for test runs, and a folder below the spec's fast folder."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore, StoreReadError, StoreWriteError, open_store

log = logging.getLogger(__name__)


class RunPlace:
    """The store of test runs, and a folder below the spec's fast folder."""

    def __init__(self, store: StoreSpec, fast_folder: str | None) -> None:
        self.store, self.fast_folder = store, fast_folder
        self.kept: str | None = None

    def keep_if(self, is_kept: bool) -> None:
        """If `is_kept` is true, keep the content of the store after the block."""
        self.kept = open_store(self.store).url if is_kept else None


@contextmanager
def scratch_place(
    spec: RunSpec, *, name: str, folder: Path | None = None, store: StoreSpec | None = None
) -> Iterator[RunPlace]:
    """Provide a store for test runs below `store`, in `folder` or in a temporary folder.

    At the end of the block, the content is removed, except if `keep_if` keeps it. The name of the folder or prefix
    begins with `name`. If this process crashes, the content stays.
    """
    name = f"{name}-{uuid.uuid4().hex[:12]}"
    fast = spec.checkpoints.fast_folder
    with ExitStack() as stack:
        if store is not None:
            place = RunPlace(store.model_copy(update={"url": f"{store.url.rstrip('/')}/{name}"}), None)
            stack.callback(_empty, place)
        elif folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            place = RunPlace(StoreSpec(url=str(folder)), None)
        else:
            place = RunPlace(StoreSpec(url=stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-"))), None)
        if fast is not None:
            place.fast_folder = str(Path(fast) / name)
            stack.callback(_remove_empty, [above for above in (Path(fast), *Path(fast).parents) if not above.exists()])
            stack.callback(shutil.rmtree, place.fast_folder, ignore_errors=True)
        yield place


def _remove_empty(folders: list[Path]) -> None:
    """Remove empty folders, the innermost folder first. Keep folders that are not empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _empty(place: RunPlace) -> None:
    """If the content is not kept, remove the objects of the store. If they cannot be removed, log a warning."""
    if place.kept is not None:
        return
    opened = open_store(place.store)
    try:
        opened.delete([item.key for item in opened.list_objects("")])
    except (StoreReadError, StoreWriteError) as error:
        log.warning("objects could not be removed store=%s reason=%s", opened.url, error)
        return
    if isinstance(opened, LocalStore):
        shutil.rmtree(opened.root, ignore_errors=True)
