"""`segue audit`: replay committed steps of a run on this machine, and compare them with the run's log."""

from __future__ import annotations

from typing import Annotated

import typer

from segue.cli.options import Endpoint, Json, Store, read_run, store_named
from segue.interop.load import choose_checkpoint
from segue.reports.console import console, progress, show_json


def audit(
    run: str,
    *,
    from_step: Annotated[
        int | None,
        typer.Option("--from", min=0, help="Step of the checkpoint to begin at; the default is the second newest."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of steps; the default is up to the next stored checkpoint.")
    ] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Replay committed steps of a run on this machine, and compare them with the log; name the machine that differs.

    The command only reads the run, so it may run while the run trains. Start it in the folder of the recipe.
    Exit code 0: the steps are equal, bit for bit or within the noise. 1: a step differs. 2: no audit is possible.
    """
    log, history = read_run(run, store=store, endpoint_url=endpoint_url)
    start = (
        choose_checkpoint(history, run_id=run, step=from_step, take_quarantined=False)
        if from_step is not None
        else None
    )
    with progress("replaying steps"):
        from segue.trainer.interval_audit import audit_steps  # This imports torch.

        place = store_named(store, endpoint_url=endpoint_url)
        report = audit_steps(log, history, store=place, start=start, steps=steps)
    if as_json:
        show_json(report.model_dump(mode="json"))
    else:
        console.print(report.sentence, markup=False, soft_wrap=True)
    if not report.passed:
        raise typer.Exit(1)
