"""`segue simulate`: policies compared on the same spot availability."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from segue.cli.durations import parse_seconds
from segue.cli.options import Endpoint, Json, Store, read_run, require_finite, writing
from segue.errors import COMMAND_LINE, HopelessPlanError, SpecError, TraceError
from segue.policies import POLICIES
from segue.reports.console import console, show_json
from segue.reports.progress import progress
from segue.units import duration

if TYPE_CHECKING:
    from segue.policy.rules.view import Job
    from segue.simulation.comparison import Figures
    from segue.simulation.traces import Trace

_RECORDED_TICK_SECONDS = 60.0
_LEGEND = {
    "cost": "mean share of on-demand only, with 95 % confidence",
    "p95": "95th percentile of the runs",
    "to UP, %": "mean cost against uniform_progress on the same spot",
    "missed": "late runs",
    "preempted": "preemptions, mean per run",
    "lost": "time of lost work, mean per run",
    "sentinel": "time of standbys on spot, mean per run",
    "optimum": "mean cost over the least possible cost",
}
"""What each column of the table is, by its name."""


class Known(StrEnum):
    """What is observed of spot while on on-demand; the names are those of `segue.policy.rules.view.Knowledge`."""

    FREE = "free"
    SENTINEL = "sentinel"
    NONE = "none"


def simulate(
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy to compare, with parameters after a colon; can be repeated; default: all policies."),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Trace file, or folder of them; default: synthetic traces.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Run id whose log is used as a trace: spot as that run observed it.")
    ] = None,
    work: Annotated[str, typer.Option(help="Time of computing from the first step to the goal: 24h, 90m.")] = "24h",
    deadline: Annotated[
        str | None, typer.Option(help="Time from the start to the deadline: 36h; default: by --deadline-share.")
    ] = None,
    deadline_share: Annotated[
        float,
        typer.Option(min=0.05, max=1.0, help="Work as a share of the time to the deadline; not used with --deadline."),
    ] = 0.7,
    changeover: Annotated[str, typer.Option(help="Time from a start to the first new step: 6m.")] = "6m",
    price_ratio: Annotated[float, typer.Option(min=1.0, help="On-demand price divided by spot price.")] = 3.0,
    runs: Annotated[
        int, typer.Option(min=2, max=10_000, help="Number of simulated runs, the same for each policy.")
    ] = 400,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the simulated spot; the same seed gives the same figures.")
    ] = 0,
    knowledge: Annotated[
        Known,
        typer.Option(
            help="What plan and slack_age observe of spot while on on-demand: everything (free), what a waiting "
            "standby shows (sentinel), or nothing (none: on-demand does the rest)."
        ),
    ] = Known.SENTINEL,
    handover: Annotated[
        bool,
        typer.Option(help="Keep on-demand running while the replacement spot machine boots (plan, slack_age)."),
    ] = True,
    up_factor: Annotated[
        float, typer.Option(min=0.05, max=20, help="Synthetic traces: multiply the preemption rate by this.")
    ] = 1.0,
    down_factor: Annotated[
        float,
        typer.Option(min=0.05, max=20, help="Synthetic traces: multiply the rate at which spot comes back by this."),
    ] = 1.0,
    save_seconds: Annotated[float, typer.Option(min=0, help="Seconds that one save takes.")] = 0.0,
    save_every: Annotated[
        str | None, typer.Option(help="Time of computing between two saves: 10m; default: a death loses no work.")
    ] = None,
    optimum: Annotated[bool, typer.Option("--optimum", help="Also compute the least possible cost; takes longer.")] = (
        False
    ),
    picture: Annotated[Path | None, typer.Option(help="PNG file to write, with the distributions of costs.")] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Compare policies on simulated spot: cost, preemptions, deadlines missed. Nothing is run.

    Costs are shares of on-demand only. Every policy runs on the same availability.
    --policy threshold:preemptions=5,slack_share=0.1 sets parameters of a policy.
    """
    import numpy as np

    from segue.policy.rules.view import Job
    from segue.simulation import comparison
    from segue.simulation.simulator import Harshness

    require_finite({"--price-ratio": price_ratio, "--save-seconds": save_seconds})
    every = parse_seconds(save_every, name="save-every") if save_every else 0.0
    _refuse_without_effect(save_seconds, every, up_factor, down_factor, is_replay=traces is not None or run is not None)
    work_seconds = parse_seconds(work, name="work")
    total = work_seconds / deadline_share if deadline is None else parse_seconds(deadline, name="deadline")
    changeover_seconds = parse_seconds(changeover, name="changeover")
    job = Job(total, work_seconds, changeover_seconds, price_ratio, knowledge.value, handover)
    harshness = Harshness(save_seconds=save_seconds, save_every_seconds=every)
    _refuse_too_little_time(job, pace=harshness.pace)
    contenders = [comparison.contender(text, job) for text in dict.fromkeys(policy or POLICIES)]
    random = np.random.default_rng(seed)
    given = _traces(traces, run, store=store, endpoint_url=endpoint_url)
    short: list[Trace] = []
    if given:
        rows, short = comparison.traced_rows(given, job, runs=runs, random=random)
    else:
        rows = comparison.synthetic_rows(job, runs=runs, random=random, up_factor=up_factor, down_factor=down_factor)
    with progress(f"simulating {runs} runs") as say:
        figures, shares = comparison.compare(
            contenders,
            rows,
            job=job,
            random=random,
            harshness=harshness,
            with_optimum=optimum,
            on_policy=lambda name: say(f"simulating {runs} runs by policy {name}"),
        )
    title = f"{duration(work_seconds)} of work in {duration(total)}, price ratio {price_ratio:g}, {runs} runs"
    if picture is not None:
        from segue.reports.forecast_plot import draw_costs

        with writing(picture):
            picture.write_bytes(draw_costs(shares, title=title))
    facts = asdict(job) | {"runs": runs, "seed": seed, "traces": [r.name for r in rows]}
    if as_json:
        left_out = [trace.name for trace in short]
        show_json(facts | {"left_out": left_out, "policies": [asdict(item) for item in figures]})
        return
    _show(figures, title=title, names=facts["traces"], short=short)


def _refuse_without_effect(
    save_seconds: float, every: float, up_factor: float, down_factor: float, *, is_replay: bool
) -> None:
    problems = []
    if save_seconds and not every:
        problems.append("--save-seconds: has no effect without --save-every; give both")
    if is_replay and (up_factor != 1 or down_factor != 1):
        problems.append(
            "--up-factor and --down-factor: are for synthetic traces; omit them, or omit --traces and --run"
        )
    if problems:
        raise SpecError(source=COMMAND_LINE, problems=tuple(problems))


def _refuse_too_little_time(job: Job, *, pace: float) -> None:
    needed = job.work_seconds / pace + job.changeover_seconds
    if job.total_seconds < needed:
        given = duration(job.total_seconds)
        raise HopelessPlanError(
            reason="deadline_too_near",
            why=f"the deadline is {given} after the start and on-demand alone needs {duration(needed)}.",
            fix="give a later --deadline, a smaller --deadline-share or less --work.",
        )


def _traces(path: Path | None, run: str | None, *, store: str, endpoint_url: str | None) -> list[Trace]:
    """The traces of the options; empty for synthetic ones."""
    from segue.simulation.synthetic import recorded_trace
    from segue.simulation.traces import read_traces

    found = [] if path is None else read_traces(path)
    if run is not None:
        _, history = read_run(run, store=store, endpoint_url=endpoint_url)
        recorded = recorded_trace(history, _RECORDED_TICK_SECONDS)
        if recorded is None:
            fix = "give a run that was on spot for longer, or --traces."
            raise TraceError(source=f"of run {run}", why="is empty: it observed spot for less than a minute", fix=fix)
        found.append(recorded)
    return found


def _show(figures: list[Figures], *, title: str, names: list[str], short: list[Trace]) -> None:
    from segue.simulation.comparison import SYNTHETIC

    where = "synthetic, from published hazards" if names == [SYNTHETIC] else f"from {len(names)} traces"
    console.print(f"{title}; availability {where}", markup=False, soft_wrap=True)
    for trace in short:
        console.print(f"not used, too short: {trace.name} ({duration(trace.seconds)})", markup=False, soft_wrap=True)
    rows = [_row(item) for item in figures]
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in rows[0]:
        is_text = name == "policy"
        # Policies with parameters have long names: they may take two lines, numbers may not.
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    console.print("; ".join(f"{name}: {_LEGEND[name]}" for name in rows[0] if name in _LEGEND), markup=False)


def _row(item: Figures) -> dict[str, str]:
    to_uniform = 100 * _half(item.to_uniform_progress_low, item.to_uniform_progress_high)
    row = {
        "policy": item.policy,
        "cost": f"{item.cost_share:.3f}\u00b1{_half(item.cost_share_low, item.cost_share_high):.3f}",
        "p95": f"{item.cost_share_p95:.3f}",
        "to UP, %": f"{100 * item.to_uniform_progress:+.1f}\u00b1{to_uniform:.1f}",
        "missed": str(item.missed),
        "preempted": f"{item.preemptions:.1f}",
        "lost": duration(item.lost_seconds),
        "sentinel": duration(item.sentinel_seconds),
    }
    return row if item.to_optimum is None else row | {"optimum": f"{item.to_optimum:.3f}"}


def _half(low: float, high: float) -> float:
    return (high - low) / 2
