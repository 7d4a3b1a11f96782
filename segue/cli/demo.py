"""`segue demo` and `segue bench`: commands that need a clone of the repository."""

from __future__ import annotations

import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import require_prefect
from segue.errors import CheckoutNeededError
from segue.reports.console import console

_FOLDER = Path(".segue")
_ROOT = Path(__file__).parents[2]


class Cloud(StrEnum):
    """Providers whose metadata service the demo imitates."""

    AWS = "aws"
    GCE = "gce"
    AZURE = "azure"


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave server and workers running after the demo.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = _FOLDER,
    cloud: Annotated[
        Cloud | None, typer.Option(help="Provider whose metadata service gives the notice; default: SIGTERM.")
    ] = None,
    retraining: Annotated[
        bool, typer.Option("--retraining", help="Six monthly slots of a scheduled retraining instead.")
    ] = False,
) -> None:
    """Train on real flights: spot, a kill, a notice, a deadline, and a bit-for-bit comparison."""
    require_prefect("demo")
    require_checkout("examples", command="demo")
    from segue.deployments.demos.demo_provider import begun_stack

    hint = "The demo was interrupted; everything it had started has ended."
    with ends_cleanly(hint=hint), begun_stack(folder, home=_ROOT, cloud=cloud) as (stack, service):
        if retraining:
            from examples.retraining.months import write_month_here
            from segue.deployments.demos.retrain_demo import run_retrain_demo

            run_retrain_demo(stack, write_month=write_month_here)
        else:
            from segue.deployments.demos.demo import run_demo

            run_demo(stack, service)
        if keep:
            console.print("server and workers stay up; Ctrl-C ends them")
            threading.Event().wait()


def bench(ctx: typer.Context) -> Any:
    """Measure segue against other tools and against the limits of this machine."""
    require_checkout("benchmarks", command="bench")
    from benchmarks.__main__ import app

    return app(ctx.args, prog_name="segue bench")


def require_checkout(folder: str, *, command: str) -> None:
    """Make a folder of the repository importable.

    Raises:
        CheckoutNeededError: this is an installed package, which does not have it.
    """
    if not (_ROOT / folder / "__init__.py").is_file():
        raise CheckoutNeededError(command=command, folder=folder)
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))
