"""`segue recover`: start the parents of open runs again that have died, once and by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.cli.options import Endpoint, require_prefect, store_named
from segue.errors import OrchestratorError
from segue.reports.console import console


def recover(
    store: Annotated[
        list[str] | None, typer.Option(help="Folder, or bucket as s3://, gs:// or az://bucket/prefix; repeatable.")
    ] = None,
    endpoint_url: Endpoint = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Recover runs that another Prefect server started, too.")
    ] = False,
) -> None:
    """Find open runs without a living parent, and start their parents again. The deployment `recover` does the same.

    Without --store it looks into every store that a parent of the Prefect server used in the last 30 days.
    Exit code 0: every open run has a parent, or was given one. 1: something could not be done.
    """
    require_prefect("recover")
    from prefect.settings import PREFECT_API_URL

    from segue.deployments.process.follow import open_client, require_server
    from segue.flows.recover import known_stores, recover_store

    if not PREFECT_API_URL.value():
        raise OrchestratorError(
            what="recover needs the Prefect server that ran the parents.", fix="set PREFECT_API_URL to its address."
        )
    given = [store_named(url, endpoint_url=endpoint_url) for url in store or ()]
    done: list[str] = []
    troubles: list[str] = []
    require_server()
    with open_client() as client:
        for one in given or known_stores(client):
            found, trouble = recover_store(client, one, take_over=take_over)
            done += found
            troubles += trouble
    for line in [*done, *troubles]:
        console.print(line, markup=False)
    if not done and not troubles:
        console.print("every open run has a living parent", markup=False)
    if troubles:
        raise typer.Exit(1)
