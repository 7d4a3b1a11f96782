"""`segue plan`: the expected cost, lateness and preemptions of a run spec, before anything runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.durations import parse_deadline, parse_seconds
from segue.cli.options import Endpoint, Json, refuse_endless, writing
from segue.clock import SystemClock
from segue.errors import COMMAND_LINE, HopelessPlanError, RunNotFoundError, SpecError, StoreUnreachableError
from segue.reports.console import console, show_json
from segue.reports.forecast_text import forecast_lines, policy_row
from segue.reports.tables import rows_table
from segue.runlog.history import History
from segue.runlog.open import find_run
from segue.spec import RunSpec, read_toml
from segue.units import duration

if TYPE_CHECKING:
    from segue.policy.estimates import Situation
    from segue.policy.rules.view import Job
    from segue.simulation.comparison import Rows
    from segue.simulation.forecast import Forecast, Sample
    from segue.simulation.traces import Trace

_PRIOR = "prior"
_UNNAMED = "unnamed"
_LONGEST_SECONDS = 100 * 365.25 * 86400


@dataclass(frozen=True)
class _Asked:
    """The run to plan, before anything is simulated."""

    spec: RunSpec
    history: History
    here: Situation
    now: datetime
    step_seconds: float
    basis: str
    """Where the seconds per step come from."""
    notes: tuple[str, ...]


def plan(
    spec: Annotated[Path, typer.Argument(help="Run spec in TOML, as for `segue run --config`.")],
    *,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="Deadline: +2h from now, the next 06:00 in local time, or an ISO time with its time zone; "
            "default: the run spec's."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal; default: the run spec's.")] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1e-6, help="Seconds per step, instead of the measured ones or the run spec's.")
    ] = None,
    work: Annotated[
        str | None, typer.Option(help="Time of all steps together, instead of --step-seconds: 24h.")
    ] = None,
    save_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds that one save takes, which sets the save interval; default: not known."),
    ] = None,
    traces: Annotated[
        str, typer.Option(help="Trace file, or folder of them; prior: synthetic traces from published hazards.")
    ] = (_PRIOR),
    runs: Annotated[int, typer.Option(min=20, max=5000, help="Number of simulated runs.")] = 200,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the simulated spot; the same seed gives the same figures.")
    ] = 0,
    store: Annotated[
        str | None,
        typer.Option(
            help="Store with the run's log: folder, file:///folder or s3://bucket/prefix; default: the run spec's."
        ),
    ] = None,
    endpoint_url: Endpoint = None,
    picture: Annotated[Path | None, typer.Option(help="PNG file to write, with a dozen of the simulated runs.")] = None,
    as_json: Json = False,
) -> None:
    """Forecast a run before it starts: cost, lateness, preemptions, lost work, save interval. Nothing is run.

    Exit code 0: the deadline can be met. 2: it cannot, with the reason, or the arguments are wrong.
    """
    now = SystemClock().now()
    refuse_endless({"--step-seconds": step_seconds, "--save-seconds": save_seconds})
    if work is not None and step_seconds is not None:
        raise SpecError(source=COMMAND_LINE, problems=("--work and --step-seconds: give one of them",))
    given = _spec(spec, deadline=deadline, steps=steps, store=store, endpoint_url=endpoint_url, now=now)
    seconds = parse_seconds(work, name="work") / given.steps if work is not None else step_seconds
    facts, expected = _planned(
        _asked(given, seconds, now=now), traces=traces, runs=runs, seed=seed, save_seconds=save_seconds, to=picture
    )
    if as_json:
        show_json(facts | {"policies": [asdict(one) for one in expected.policies]})
        return
    for name, text in forecast_lines(facts):
        console.print(f"{name:>18}  {text}", markup=False, soft_wrap=True)
    console.print(rows_table([policy_row(one) for one in expected.policies]))


def _spec(
    path: Path, *, deadline: str | None, steps: int | None, store: str | None, endpoint_url: str | None, now: datetime
) -> RunSpec:
    fields = read_toml(path)
    # `segue run` can take these from the command line; the forecast does not depend on them.
    fields = {"run_id": _UNNAMED, "recipe": f"{_UNNAMED}:build"} | fields
    if deadline is not None:
        fields["deadline"] = parse_deadline(deadline, now=now)
    if steps is not None:
        fields["steps"] = steps
    where = {name: value for name, value in (("url", store), ("endpoint_url", endpoint_url)) if value is not None}
    if where:
        known = fields.get("store")
        fields["store"] = (known if isinstance(known, dict) else {}) | where
    return RunSpec.parse(fields, source=str(path))


def _asked(spec: RunSpec, seconds: float | None, *, now: datetime) -> _Asked:
    from segue.policy import estimates
    from segue.simulation.forecast import without_measures

    spec.require_future_deadline(now)
    history, notes = _history(spec)
    if seconds is not None:
        history = without_measures(history)
        policy = spec.policy.model_copy(update={"step_seconds": seconds})
        spec = spec.model_copy(update={"policy": policy})
    rate = estimates.step_seconds(spec, history)
    if rate is None:
        problem = (
            "policy.step_seconds: is not set, and no run has measured it; set it, or give --step-seconds or --work"
        )
        raise SpecError(source="the plan", problems=(problem,))
    if history.committed_step >= spec.steps:
        why = f"run {spec.run_id} has committed step {history.committed_step} of {spec.steps}: no work is left."
        raise HopelessPlanError(reason="nothing_left", why=why, fix="set more steps, or another run_id.")
    if (spec.steps - history.committed_step) * rate > _LONGEST_SECONDS:
        problem = f"{spec.steps} steps of {rate:.4g} s are more than a hundred years; give fewer steps or shorter ones"
        raise SpecError(source="the plan", problems=(problem,))
    measured = any(report.train_steps > 0 for report in history.last_reports())
    basis = "as given" if seconds is not None else "measured by the run" if measured else "policy.step_seconds"
    here = estimates.situation(spec, history, now=now)
    return _Asked(spec, history, here, now, rate, basis, notes)


def _history(spec: RunSpec) -> tuple[History, tuple[str, ...]]:
    """The run's history; empty where there is none, with a note where the store could not be read."""
    if spec.run_id == _UNNAMED:
        return History(), ()
    try:
        return find_run(spec.run_id, spec.store)[1], ()
    except RunNotFoundError:
        return History(), ()
    except StoreUnreachableError as error:
        return History(), (f"the run's log was not read: {error}",)


def _planned(
    asked: _Asked, *, traces: str, runs: int, seed: int, save_seconds: float | None, to: Path | None
) -> tuple[dict[str, Any], Forecast]:
    from segue.policy import clamp, feasibility
    from segue.simulation import forecast

    spec, here = asked.spec, asked.here
    given = _traces(traces)
    life = forecast.life_of(asked.history, prior_seconds=_mean_life(given))
    feasibility.refuse_hopeless(spec, here, now=asked.now, life_seconds=life.mean_seconds, save_seconds=save_seconds)
    cadence = forecast.cadence_of(spec, life, save_seconds=save_seconds)
    lost = forecast.lost_by_a_death_seconds(cadence, here, save_seconds=save_seconds)
    here = forecast.with_cadence(here, cadence, save_seconds=save_seconds)
    job = forecast.job_ahead(spec, here, longest_seconds=max((t.seconds for t in given), default=None))
    rows, notes = _rows(given, job, runs=runs, seed=seed)
    expected = forecast.forecast(spec, here, rows, job=job, lost_seconds=lost)
    moments = forecast.latest_moments(spec, here)
    notes += _notes_on(spec, expected, job)
    if spec.pools.price_ratio <= 1:
        notes += ("no spot pool is cheaper than on-demand",)
    elif not clamp.permits_spot(here):
        missing = (clamp.needed_for_spot_seconds(here) or 0.0) - (here.remaining_seconds or 0.0)
        notes += (f"the safety clamp permits no spot attempt: it needs a deadline {duration(missing)} later",)
    latest = {name: moments[name].isoformat() if name in moments else None for name in forecast.MOMENTS}
    facts = _facts(asked, expected, job=job) | latest
    facts |= {"cadence": cadence.reason, "cadence_interval_seconds": cadence.interval_seconds}
    facts |= {"life_seconds": life.mean_seconds, "lost_by_a_death_seconds": lost}
    names = [r.name for r in rows] if given else [_PRIOR]
    facts |= {"traces": names, "runs": runs, "seed": seed, "notes": list(asked.notes + notes)}
    if to is not None:
        _draw(
            asked, forecast.sample(spec, here, rows, job=job, lost_seconds=lost), moments.get("latest_safe_moment"), to
        )
    return facts, expected


def _notes_on(spec: RunSpec, expected: Forecast, job: Job) -> tuple[str, ...]:
    """What limits the figures."""
    notes: tuple[str, ...] = ()
    if spec.deadline is None and expected.on_demand_share > 0:
        notes += (
            f"without a deadline a run waits for spot; {expected.on_demand_share:.0%} of the simulated runs had too "
            f"little of it in {duration(job.total_seconds)} and are counted as finished on on-demand",
        )
    if len(spec.pools.spot) > 1:
        notes += ("of several spot pools only the cheapest is simulated",)
    return notes


def _rows(given: list[Trace], job: Job, *, runs: int, seed: int) -> tuple[list[Rows], tuple[str, ...]]:
    import numpy as np

    from segue.simulation.comparison import synthetic_rows, traced_rows

    random = np.random.default_rng(seed)
    if not given:
        return synthetic_rows(job, runs=runs, random=random, is_quick=True), ()
    rows, short = traced_rows(given, job, runs=runs, random=random)
    return rows, tuple(f"trace {trace.name} is not used: it covers only {duration(trace.seconds)}" for trace in short)


def _traces(named: str) -> list[Trace]:
    from segue.simulation.traces import read_traces

    return [] if named == _PRIOR else read_traces(Path(named))


def _mean_life(given: list[Trace]) -> float | None:
    lives = [life for life in (trace.mean_up_seconds() for trace in given) if life is not None]
    return sum(lives) / len(lives) if lives else None


def _facts(asked: _Asked, expected: Forecast, *, job: Job) -> dict[str, Any]:
    spec, here, first = asked.spec, asked.here, expected.policies[0]
    hours = (job.work_seconds + job.changeover_seconds) / 3600
    return {
        "run": None if spec.run_id == _UNNAMED else spec.run_id,
        "policy": spec.policy.name,
        "comes_to": first.policy,
        "now": asked.now.isoformat(),
        "currency": spec.pools.currency,
        "committed_step": asked.history.committed_step,
        "steps": spec.steps,
        "step_seconds": asked.step_seconds,
        "step_seconds_basis": asked.basis,
        "work_seconds": job.work_seconds,
        "changeover_seconds": job.changeover_seconds,
        "deadline": spec.deadline.isoformat() if spec.deadline else None,
        "remaining_seconds": here.remaining_seconds,
        "slack_seconds": here.slack_seconds,
        "cost": first.cost,
        "cost_p5": first.cost_p5,
        "cost_p95": first.cost_p95,
        "cost_share": first.cost_share,
        "on_demand_cost": hours * spec.pools.on_demand_price,
        "late_share": first.late_share if spec.deadline else None,
        "preemptions": first.preemptions,
        "lost_seconds": expected.lost_seconds,
        "finish": (asked.now + timedelta(seconds=first.finish_seconds)).isoformat(),
    }


def _draw(asked: _Asked, sample: Sample, latest: datetime | None, to: Path) -> None:
    from segue.reports.forecast_plot import draw_sample

    picture = draw_sample(
        sample,
        title=f"{len(sample.modes)} simulated runs by policy {asked.spec.policy.name}",
        deadline_seconds=asked.here.remaining_seconds,
        latest_seconds=(latest - asked.now).total_seconds() if latest else None,
    )
    with writing(to):
        to.write_bytes(picture)
