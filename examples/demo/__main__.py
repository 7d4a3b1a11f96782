"""`python -m examples.demo`: spot, a kill, a notice, a deadline, and a comparison with an undisturbed run."""

from __future__ import annotations

import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from examples.demo.provider import begun_stack
from segue.cli.interrupts import ends_cleanly
from segue.cli.options import require_prefect
from segue.errors import SegueError
from segue.reports.console import console, show_error

_CLONE = Path(__file__).parents[2]


class Cloud(StrEnum):
    """Providers whose metadata service the demo imitates."""

    AWS = "aws"
    GCE = "gce"
    AZURE = "azure"


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave server and workers running after the demo.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(".segue"),
    cloud: Annotated[
        Cloud | None, typer.Option(help="Provider whose metadata service gives the notice; default: SIGTERM.")
    ] = None,
    retraining: Annotated[
        bool, typer.Option("--retraining", help="Six monthly slots of a scheduled retraining instead.")
    ] = False,
) -> None:
    """Train on real flights: spot, a kill, a notice, a deadline, and a bit-for-bit comparison."""
    require_prefect("demo")
    hint = "The demo was interrupted; everything it had started has ended."
    with ends_cleanly(hint=hint), begun_stack(folder, home=_CLONE, cloud=cloud) as (stack, service):
        # Imported while the server starts: both take seconds.
        if retraining:
            from examples.demo.retraining import run_retrain_demo

            run_retrain_demo(stack)
        else:
            from examples.demo.main_job import run_demo

            run_demo(stack, service)
        if keep:
            console.print("server and workers stay up; Ctrl-C ends them")
            threading.Event().wait()


if __name__ == "__main__":
    try:
        typer.run(demo)
    except SegueError as error:
        show_error(error)
        sys.exit(error.exit_code)
