"""`python -m benchmarks simulate`: compares policies on the same spot availability."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.common.terminal import progress
from benchmarks.deadline.comparison import Figures, compare, contender
from segue.cli.options import parse_seconds, require_finite
from segue.errors import COMMAND_LINE, HopelessPlanError, SpecError
from segue.policies import POLICIES
from segue.policy.rules.view import Job, Knowledge
from segue.reports.console import console, show_json
from segue.simulation.rows import SYNTHETIC, Rows, synthetic_rows, traced_rows
from segue.simulation.traces import Trace, read_traces
from segue.units import duration

_LEGEND = {
    "cost": "mean share of on-demand only, with 95 % confidence",
    "p95": "95th percentile of the runs",
    "to UP, %": "mean cost against uniform_progress on the same spot",
    "missed": "late runs",
    "preempted": "preemptions, mean per run",
    "sentinel": "time of standbys on spot, mean per run",
    "optimum": "mean cost over the least possible cost",
}
"""The description of each column of the table, by its name."""


def simulate(
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy to compare, with parameters after a colon; can be repeated; default: all policies."),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Trace file, or folder of them; default: synthetic traces.")
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
        Knowledge,
        typer.Option(
            help="What plan and slack_age observe of spot while on on-demand: everything (free), what a waiting "
            "standby shows (sentinel), or nothing (none: on-demand does the rest)."
        ),
    ] = "sentinel",
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
    optimum: Annotated[bool, typer.Option("--optimum", help="Also compute the least possible cost; takes longer.")] = (
        False
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare policies on simulated spot: cost, preemptions, deadlines missed.

    Costs are shares of on-demand only. Every policy runs on the same availability.
    --policy threshold:preemptions=5,slack_share=0.1 sets parameters of a policy.
    """
    require_finite({"--price-ratio": price_ratio})
    if traces is not None and (up_factor != 1 or down_factor != 1):
        problem = "--up-factor and --down-factor: are for synthetic traces; omit them, or omit --traces"
        raise SpecError(source=COMMAND_LINE, problems=(problem,))
    work_seconds = parse_seconds(work, name="work")
    total = work_seconds / deadline_share if deadline is None else parse_seconds(deadline, name="deadline")
    start, has_margin = parse_seconds(changeover, name="changeover"), knowledge != "free"
    job = Job(total, work_seconds, start, price_ratio, knowledge, handover, has_margin)
    _refuse_too_little_time(job)
    contenders = [contender(text, job) for text in dict.fromkeys(policy or POLICIES)]
    random = np.random.default_rng(seed)
    rows: list[Rows]
    short: list[Trace] = []
    if traces is None:
        rows = synthetic_rows(job, runs=runs, random=random, up_factor=up_factor, down_factor=down_factor)
    else:
        rows, short = traced_rows(read_traces(traces), job, runs=runs, random=random)
    with progress() as say:
        figures = compare(
            contenders,
            rows,
            job=job,
            random=random,
            with_optimum=optimum,
            on_policy=lambda name: say(f"simulating {runs} runs by policy {name}"),
        )
    names = [each.name for each in rows]
    if as_json:
        facts = asdict(job) | {"runs": runs, "seed": seed, "traces": names}
        left_out = [trace.name for trace in short]
        show_json(facts | {"left_out": left_out, "policies": [asdict(item) for item in figures]})
        return
    title = f"{duration(work_seconds)} of work in {duration(total)}, price ratio {price_ratio:g}, {runs} runs"
    _show(figures, title=title, names=names, short=short)


def _refuse_too_little_time(job: Job) -> None:
    needed = job.work_seconds + job.changeover_seconds
    if job.total_seconds < needed:
        given = duration(job.total_seconds)
        raise HopelessPlanError(
            reason="deadline_too_near",
            why=f"the deadline is {given} after the start and on-demand alone needs {duration(needed)}.",
            fix="give a later --deadline, a smaller --deadline-share or less --work.",
        )


def _show(figures: list[Figures], *, title: str, names: list[str], short: list[Trace]) -> None:
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
        "sentinel": duration(item.sentinel_seconds),
    }
    return row if item.to_optimum is None else row | {"optimum": f"{item.to_optimum:.3f}"}


def _half(low: float, high: float) -> float:
    return (high - low) / 2
