"""What every command that looks at a run asks for, and the way from there to the run's log."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.errors import BadKeyError, MissingObjectError, RunNotFoundError, StoreUnreachableError
from segue.history import History, read_history
from segue.runlog import RunLog
from segue.spec import StoreSpec
from segue.stores import StoreReadError, open_store

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Store = Annotated[str, typer.Option(help="Folder, file:///folder or s3://bucket/prefix.")]
Endpoint = Annotated[str | None, typer.Option(help="S3 endpoint other than AWS's.")]


def read_run(run: str, *, store: str, endpoint_url: str | None) -> tuple[RunLog, History]:
    """A run's log and what it says.

    Raises:
        RunNotFoundError: the store holds no such run.
        StoreUnreachableError: the store cannot be read.
    """
    opened = open_store(StoreSpec.parse({"url": store, "endpoint_url": endpoint_url}, source="the command line"))
    log = RunLog(opened, run)
    try:
        history = read_history(log.reload())
        if history.next_slot == 0:
            raise RunNotFoundError(run_id=run, store=opened.url, known=tuple(opened.folders()))
    except StoreReadError as error:
        mend = "Check --store, --endpoint-url, the network and your access."
        raise StoreUnreachableError(url=opened.url, why=f"cannot be read ({error.why}).", mend=mend) from None
    except (BadKeyError, MissingObjectError):
        # Not a name that a run can have, or a bucket that is not there.
        raise RunNotFoundError(run_id=run, store=opened.url) from None
    return log, history
