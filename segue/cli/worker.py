"""`segue worker`: a Prefect worker that keeps a process ready for the next segment."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.cli.options import require_prefect


def worker(
    pool: Annotated[str, typer.Option(help="Work pool, for example spot.")],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Highest number of flow runs at a time; default: no limit.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this worker in Prefect; default: chosen by Prefect.")
    ] = None,
) -> None:
    """Run a worker that starts segments of a process pool two to three seconds sooner than Prefect's own worker.

    Use the command in place of `prefect worker start --pool POOL`. While a segment trains, an engine and a trainer for
    the next segment wait on this machine with all modules imported. They need about 400 MB. Other flow runs start as
    usual. If a Prefect server on SQLite refuses a request, this worker repeats the request within 50 ms, on pools of
    every type. Prefect's own worker repeats the request after 2 to 32 s.
    """
    require_prefect("worker")
    from segue.deployments.workers.warm_worker import work

    arguments = ["worker", "start", "--pool", pool]
    arguments += [] if limit is None else ["--limit", str(limit)]
    work(arguments if name is None else [*arguments, "--name", name])
