"""The `segue` command. Prefect and torch are imported by the commands that need them, as late as can be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segue.cli import checkpoints, curve, plan, simulate
from segue.cli.demo import bench, demo
from segue.cli.options import Endpoint, Json, Store, read_run
from segue.cli.run import run as run_command
from segue.controller.standby_messages import held_by_standbys
from segue.errors import COMMAND_LINE, SegueError
from segue.records import Heartbeat
from segue.reports.cost import cost_report
from segue.reports.tables import (
    anomaly_facts,
    console,
    decision_rows,
    errors,
    segment_rows,
    segments_table,
    show_error,
    show_json,
)
from segue.runlog.heartbeat import last_heartbeat
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.spec import RunSpec, read_toml

app = typer.Typer(
    name="segue",
    help="Train PyTorch models on interruptible spot capacity, in segments that end at a committed checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(checkpoints.app)
app.add_typer(curve.app)
app.command()(plan.plan)
app.command()(simulate.simulate)
app.command("run")(run_command)
app.command()(demo)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(bench)


@app.command()
def status(run: str, store: Store = ".segue/store", endpoint_url: Endpoint = None, as_json: Json = False) -> None:
    """Show where a run is: its segments, their verdicts, the last decision, any damage."""
    runlog, history = read_run(run, store=store, endpoint_url=endpoint_url)
    spec, last = history.spec, history.decisions[-1] if history.decisions else None
    facts: dict[str, Any] = {
        "run": run,
        "committed_step": history.committed_step,
        "steps": spec.steps if spec else None,
        "state": _state(history),
        "deadline": spec.deadline.isoformat(timespec="seconds") if spec and spec.deadline else None,
        "last_decision": last.reason if last else None,
    }
    beat = _live_heartbeat(runlog, history)
    facts |= anomaly_facts(history) | _live_facts(beat)
    standbys = held_by_standbys(runlog.store, run)
    cost = cost_report(spec, history, live_seconds=_live_seconds(beat, history), standbys=standbys) if spec else None
    damage = [{"slot": item.slot, "key": item.key, "why": item.why} for item in history.damage]
    if as_json:
        told = {
            "segments": segment_rows(history),
            "decisions": decision_rows(history),
            "cost": cost.numbers() if cost else None,
            "damage": damage,
        }
        show_json(facts | told)
        return
    for name, value in facts.items():
        console.print(f"{name.replace('_', ' '):>15}  {'-' if value is None else value}", markup=False)
    console.print(segments_table(history))
    for name, value in cost.rows().items() if cost and history.attempts else ():
        console.print(f"{name:>17}  {value}", markup=False)
    for item in damage:
        console.print(f"damaged: {item['key']}: {item['why']}", markup=False, style="red")


@app.command()
def drill(
    recipe: Annotated[str, typer.Argument(help="package.module:function, found from the current folder.")],
    config: Annotated[Path | None, typer.Option(help="TOML run spec; its [config] table goes to the recipe.")] = None,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps of each of the two runs.")] = 90,
    kills: Annotated[int, typer.Option(min=1, help="How often the second run is killed.")] = 2,
    as_json: Json = False,
) -> None:
    """Kill, resume, compare: does this recipe come back as the run it would have been?

    Exit code 0: every resume verified and the final state identical. 3: broken or different. 1: not proven.
    """
    fields = (read_toml(config) if config else {}) | {"run_id": "drill", "recipe": recipe, "steps": steps}
    spec = RunSpec.parse(fields, source=str(config) if config else COMMAND_LINE)
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    from segue.recipe import import_build
    from segue.resume_drill import drill as run_drill

    import_build(recipe)
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=steps) for name in ("reference", "killed")}
        report = run_drill(spec, kills=kills, progress=lambda name, done: bars.update(tasks[name], completed=done))
    if as_json:
        show_json(report.model_dump(mode="json"))
    else:
        for number, verdict in enumerate(report.verdicts, 1):
            console.print(f"resume {number}: {verdict.sentence}", markup=False)
        outcome = (
            "identical to" if report.identical else f"different from (in {', '.join(report.differing) or report.ended})"
        )
        console.print(
            f"after {report.kills} kills the final state is {outcome} the undisturbed run's: {report.verdict}",
            markup=False,
        )
    if not report.passed:
        broken = report.verdict == "broken" or not report.identical
        raise typer.Exit(3 if broken else 1)


def main() -> None:
    """Entry point of the console script: every expected error is one paragraph and an exit code."""
    try:
        app()
    except SegueError as error:
        show_error(error)
        sys.exit(error.exit_code)


def _live_heartbeat(runlog: RunLog, history: History) -> Heartbeat | None:
    plan = history.open_plan
    return last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt)) if plan is not None else None


def _live_seconds(beat: Heartbeat | None, history: History) -> float:
    """How long the attempt at work has had its machine, by its newest sign of life."""
    if beat is None:
        return 0.0
    claims = (attempt.claim for attempt in history.attempts if attempt.claim.attempt_id == beat.attempt_id)
    return max(((beat.beat_at - claim.written_at).total_seconds() for claim in claims), default=0.0)


def _live_facts(beat: Heartbeat | None) -> dict[str, Any]:
    """What the attempt at work says of itself; nothing when there is none."""
    if beat is None:
        return {}
    return {
        "live_step": beat.step,
        "saves": beat.cadence,
        "saves_delayed": beat.saves_delayed,
        "save_trouble": beat.trouble,
    }


def _state(history: History) -> str:
    if history.spec is not None and history.committed_step >= history.spec.steps:
        return "finished"
    plan = history.open_plan
    if plan is not None:
        doing = "importing weights" if history.is_import(plan.segment, plan.attempt) else f"on {plan.capacity}"
        return f"segment {plan.segment} attempt {plan.attempt} {doing}"
    last = history.decisions[-1] if history.decisions else None
    return last.action if last and last.plan is None else "between segments"
