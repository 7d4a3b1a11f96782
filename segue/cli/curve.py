"""`segue curve`: show, check and plot a run's loss curve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.options import DefaultCommandGroup, Endpoint, Json, Store, read_run, writing
from segue.reports.console import console, show_json
from segue.reports.tables import rows_table

if TYPE_CHECKING:
    import pandas as pd

_ROWS_SHOWN = 20
_SHOWN = ["segment", "capacity", "step", "loss", "grad_norm", "param_norm", "lr", "step_seconds", "verdict"]


class _CurveGroup(DefaultCommandGroup):
    default = "show"


app = typer.Typer(
    name="curve",
    cls=_CurveGroup,
    help="Show a run's loss curve, check it, or draw one of its resume points.\n\n"
    "`segue curve RUN` is short for `segue curve show RUN`.",
    no_args_is_help=True,
)


@app.command()
def show(
    run: str,
    *,
    csv: Annotated[Path | None, typer.Option(help="Write all rows to this CSV file.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write all rows to this parquet file.")] = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Include superseded steps, which were lost and then run again.")
    ] = False,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Show the newest steps of the loss curve, or write the whole curve to a file."""
    from segue.curves.frame import curve

    log, _ = read_run(run, store=store, endpoint_url=endpoint_url)
    frame = curve(log, superseded=superseded)
    for path, write in ((csv, _write_csv), (parquet, _write_parquet)):
        if path is not None:
            with writing(path):
                write(frame, path)
    files = [str(path) for path in (csv, parquet) if path is not None]
    facts = {"run": run, "rows": len(frame)} | _ends(frame)
    if as_json:
        show_json(facts | {"files": files})
        return
    if not files:
        rows: list[dict[str, Any]] = frame[_SHOWN].tail(_ROWS_SHOWN).to_dict("records")  # type: ignore[assignment]
        console.print(rows_table(rows))
    where = f" in {', '.join(files)}" if files else ""
    console.print(f"{run}: {len(frame)} rows{where}, {_words(facts)}", markup=False, soft_wrap=True)


@app.command()
def check(
    run: str,
    *,
    docs: Annotated[Path | None, typer.Option(help="Folder for Data Docs (HTML).")] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Check the loss curve: no gaps, no step twice, finite losses, and equal values at repeated steps.

    Exit code 0: nothing failed. 3: an expectation failed. 2: the options are not valid for this run.
    """
    from segue.curves.expectations import check_curve

    log, _ = read_run(run, store=store, endpoint_url=endpoint_url)
    report = check_curve(log, docs=docs)
    if as_json:
        show_json(report.model_dump(mode="json") | {"passed": report.passed})
    else:
        rows = [{"expectation": item.name, "outcome": item.outcome} for item in report.expectations]
        console.print(rows_table(rows))
        for item in report.failed:
            console.print(f"{item.sentence} Observed: {item.observed}.", markup=False, soft_wrap=True)
        console.print(report.sentence, markup=False, soft_wrap=True)
        if report.docs is not None:
            console.print(f"Data Docs: {report.docs}", markup=False, soft_wrap=True)
    if not report.passed:
        raise typer.Exit(3)


@app.command("seam", hidden=True)  # The old name; scripts use it.
@app.command()
def resume(
    run: str,
    *,
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    segment: Annotated[
        int | None, typer.Option(min=0, help="Segment to draw; the default is the newest resume.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Attempt of that segment; the default is the newest attempt.")
    ] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Draw one plot of a resume point: the steps before it, and the recorded and the replayed steps after it."""
    from segue.curves.resume_plot import draw_resume

    log, _ = read_run(run, store=store, endpoint_url=endpoint_url)
    picture = draw_resume(log, segment=segment, attempt=attempt)
    with writing(out):
        out.write_bytes(picture)
    console.print(f"resume point written to {out}", markup=False, soft_wrap=True)


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)  # Pandas writes the shortest digits that read back as the same number.


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    frame.to_parquet(path, index=False)


def _ends(frame: pd.DataFrame) -> dict[str, int | None]:
    if frame.empty:
        return {"first_step": None, "last_step": None}
    return {"first_step": int(frame["step"].min()), "last_step": int(frame["step"].max())}


def _words(facts: dict[str, Any]) -> str:
    if facts["first_step"] is None:
        return "no step committed yet"
    return f"steps {facts['first_step']} to {facts['last_step']}"
