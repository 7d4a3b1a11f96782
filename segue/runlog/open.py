"""Opens the log of a run, by the run spec or by the run id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from segue.clock import Clock
from segue.errors import (
    BadKeyError,
    LogCutError,
    MissingObjectError,
    RunNotFoundError,
    SigningKeyNeededError,
    StoreUnreachableError,
    UnsignedLogError,
)
from segue.runlog import keys
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.signing import open_signer
from segue.spec import RunSpec, StoreSpec
from segue.stores import StoreReadError, open_store
from segue.stores.base import Store, StoreGoneError
from segue.stores.local import LocalStore

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

DEFAULT_STORE = ".segue/store"


def open_log(spec: RunSpec, *, clock: Clock | None = None) -> RunLog:
    """Return the log of the run that a run spec describes, without reading or writing.

    Raises:
        StoreUnreachableError: the store's URL is not valid.
        SigningKeyError: the signing key in the spec cannot be used.
    """
    return log_in(open_store(spec.store), spec.run_id, spec.store, clock=clock)


def log_in(store: Store, run_id: str, spec: StoreSpec | str | Path, *, clock: Clock | None = None) -> RunLog:
    """Return the log of a run in an open store, with the signing key of the store spec, without reading or writing.

    Raises:
        SigningKeyError: the signing key in the spec cannot be used.
    """
    reference = spec.signing_key if isinstance(spec, StoreSpec) else None
    return RunLog(store, run_id, clock=clock, signer=open_signer(reference) if reference is not None else None)


def find_run(run_id: str, store: StoreSpec | str | Path = DEFAULT_STORE) -> tuple[RunLog, History]:
    """Return the log and the history of a run. The function writes nothing.

    Raises:
        RunNotFoundError: the store has no run with this id.
        StoreUnreachableError: the store cannot be read.
    """
    opened = open_store(store)
    log = log_in(opened, run_id, store)
    try:
        history = read_history(log.reload())
        if history.next_slot == 0:
            raise RunNotFoundError(run_id=run_id, store=opened.url, known=_names(opened))
    except BadKeyError:  # The given text is not a valid run id.
        raise RunNotFoundError(run_id=run_id, store=opened.url, known=_names(opened)) from None
    except (StoreGoneError, MissingObjectError):  # The store or its bucket does not exist.
        raise RunNotFoundError(run_id=run_id, store=opened.url) from None
    except StoreReadError as error:
        raise _unreadable(opened, error) from None
    return log, history


def _names(opened: Store) -> tuple[str, ...]:
    """Return the names of all folders in a store that may be runs. If the listing fails, return no names."""
    try:
        return tuple(filter(keys.is_run_folder, opened.folders()))
    except (StoreReadError, MissingObjectError):
        return ()


def known_runs(store: StoreSpec | str | Path = DEFAULT_STORE) -> Iterator[tuple[RunLog, History]]:
    """Return the log and the history of every run of a store, sorted by run id. The function writes nothing.

    Raises:
        StoreUnreachableError: the store does not exist or cannot be read.
    """
    opened = open_store(store)
    if isinstance(opened, LocalStore) and not opened.root.is_dir():
        raise _missing(opened)
    try:
        yield from runs_in(opened, store)
    except StoreReadError as error:
        raise _unreadable(opened, error) from None
    except MissingObjectError:
        raise _missing(opened) from None


def runs_in(
    opened: Store, store: StoreSpec | str | Path, *, other_than: str | None = None
) -> Iterator[tuple[RunLog, History]]:
    """Yield the log and the history of every run of an open store except `other_than`, sorted by run id.

    The function writes nothing. A run that needs another signing key is skipped with a warning. A run that was deleted
    in part is also skipped with a warning.

    Raises:
        StoreReadError: the store could not be read.
        MissingObjectError: the bucket does not exist.
    """
    for name in filter(keys.is_run_folder, opened.folders()):
        if name == other_than:
            continue
        log = log_in(opened, name, store)
        try:
            history = read_history(log.reload())
        except (LogCutError, SigningKeyNeededError, UnsignedLogError) as error:
            logger.warning("run skipped run=%s reason=%s", name, error)
            continue
        if history.next_slot:
            yield log, history


def read_store(store: StoreSpec, read: Callable[[Store], _T]) -> _T:
    """Return the result of the function `read` for an open store.

    Raises:
        StoreUnreachableError: the store does not exist or cannot be read.
    """
    opened = open_store(store)
    if isinstance(opened, LocalStore) and not opened.root.is_dir():
        raise _missing(opened)
    try:
        return read(opened)
    except StoreReadError as error:
        raise _unreadable(opened, error) from None
    except MissingObjectError:
        raise _missing(opened) from None


def _missing(store: Store) -> StoreUnreachableError:
    fix = "correct --store; a store is created by its first run."
    return StoreUnreachableError(url=store.url, why="there is no such folder or bucket.", fix=fix)


def _unreadable(store: Store, error: StoreReadError) -> StoreUnreachableError:
    fix = "check --store, --endpoint-url, the network and your access."
    return StoreUnreachableError(url=store.url, why=f"it cannot be read ({error.why}).", fix=fix)
