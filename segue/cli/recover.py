"""`segue recover`: start the dead parents of open runs again."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.cli.options import Endpoint, require_prefect, store_named
from segue.clock import SystemClock
from segue.controller.recovery_looks import SILENCE_FIX, seconds_without_look, silence_sentence
from segue.errors import OrchestratorError, StoreError
from segue.reports.console import console
from segue.spec import StoreSpec
from segue.stores import open_store


def recover(
    store: Annotated[
        list[str] | None,
        typer.Option(help="Store to check: a folder, or a bucket as s3://, gs:// or az://bucket/prefix; repeatable."),
    ] = None,
    endpoint_url: Endpoint = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also recover runs that another Prefect server started.")
    ] = False,
) -> None:
    """Find open runs without a living parent, and start their parents again, as the deployment `recover` does.

    Without --store, the command checks every store that a parent of the Prefect server used in the last 30 days. If the
    scheduled recovery has not checked a store for three of its intervals (at least three minutes), the command prints a
    warning.
    Exit code 0: every open run has a parent again. 1: at least one store or run could not be handled.
    """
    require_prefect("recover")
    from prefect.settings import PREFECT_API_URL

    from segue.deployments.follow import open_client, require_server
    from segue.prefect.parent_clock import clock_of
    from segue.prefect.recovery.known_stores import known_stores
    from segue.prefect.recovery.look import Looked, end_never_begun, look_at

    if not PREFECT_API_URL.value():
        raise OrchestratorError(
            what="recover needs the Prefect server that ran the parents.", fix="set PREFECT_API_URL to its address."
        )
    given = [store_named(url, endpoint_url=endpoint_url) for url in store or ()]
    require_server()
    with open_client() as client:
        stores = given or known_stores(client, clock=SystemClock())
        for text in filter(None, map(_silence, stores)):
            console.print(text, markup=False, soft_wrap=True)
        found = sum((look_at(client, one, take_over=take_over) for one in stores), Looked())
        found += end_never_begun(client, now=clock_of(client).now())
    for line in found.lines:
        console.print(line, markup=False, soft_wrap=True)
    if found.troubles:
        raise typer.Exit(1)


def _silence(store: StoreSpec) -> str | None:
    """Return a warning if the schedule no longer checks this store.

    Call this function before the command's own check.
    """
    try:
        seconds = seconds_without_look(open_store(store), now=SystemClock().now())
    except StoreError:
        return None  # The look itself reports the problem with the store.
    return f"{store.url}: {silence_sentence(seconds)}. {SILENCE_FIX}" if seconds is not None else None
