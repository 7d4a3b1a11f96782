"""The way from a run's name to its log, for whoever only looks at it."""

from __future__ import annotations

from pathlib import Path

from segue.errors import BadKeyError, MissingObjectError, RunNotFoundError, StoreUnreachableError
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import StoreReadError, open_store

DEFAULT_STORE = ".segue/store"


def find_run(run_id: str, store: StoreSpec | str | Path = DEFAULT_STORE) -> tuple[RunLog, History]:
    """A run's log and what it says. Nothing is written.

    Raises:
        RunNotFoundError: the store holds no such run.
        StoreUnreachableError: the store cannot be read.
    """
    opened = open_store(store)
    log = RunLog(opened, run_id)
    try:
        history = read_history(log.reload())
        if history.next_slot == 0:
            raise RunNotFoundError(run_id=run_id, store=opened.url, known=tuple(opened.folders()))
    except StoreReadError as error:
        fix = "Check --store, --endpoint-url, the network and your access."
        raise StoreUnreachableError(url=opened.url, why=f"cannot be read ({error.why}).", fix=fix) from None
    except (BadKeyError, MissingObjectError):
        # Not a name that a run can have, or a bucket that is not there.
        raise RunNotFoundError(run_id=run_id, store=opened.url) from None
    return log, history
