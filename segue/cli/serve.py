"""`segue serve`: run the parents of many runs in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.cli.options import require_prefect
from segue.reports.console import console, errors

_HINT = (
    "segue: the attempts continue to train. The flow `recover` starts their parents again on this pool; "
    "start `segue serve` or a worker for this pool."
)


def serve(
    runs: Annotated[int, typer.Option(min=1, help="Highest number of runs at a time; further runs wait.")] = 100,
    pool: Annotated[str, typer.Option(help="Work pool of the parents; its type must be process.")] = "parents",
    name: Annotated[str | None, typer.Option(help="Name of this worker in Prefect; default: serve-HOST.")] = None,
) -> None:
    """Run the parents of many runs in one process, in place of `prefect worker start --pool parents`.

    Start this command in the folder that the deployments set as working_dir. A parent runs in a separate process if its
    job has another folder, its own command or its own variables. Every other flow run of the pool also runs in a
    separate process. The command runs until Ctrl-C or SIGTERM. If OTEL_METRICS_EXPORTER is prometheus or otlp, the
    command exports the metrics of its runs.

    Exit code 130: ended by Ctrl-C. 143: ended by SIGTERM. 2: the server or the pool cannot be used, or the metrics
    cannot be exported.
    """
    require_prefect("serve")
    from segue.deployments.workers.parents_worker import serve as serve_here

    signum = serve_here(pool=pool, runs=runs, name=name, say=lambda text: console.print(text, markup=False))
    errors.print(_HINT, markup=False)
    raise typer.Exit(128 + signum)
