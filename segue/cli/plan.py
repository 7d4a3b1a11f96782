"""`segue plan`: what a run spec will cost and go through, before anything runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.durations import parse_deadline, parse_seconds
from segue.cli.options import Endpoint, Json, refuse_endless, writing
from segue.clock import SystemClock
from segue.errors import COMMAND_LINE, HopelessPlanError, RunNotFoundError, SpecError, StoreUnreachableError
from segue.reports.tables import console, rows_table, show_json
from segue.runlog.history import History
from segue.runlog.open import find_run
from segue.spec import RunSpec, read_toml
from segue.units import span

if TYPE_CHECKING:
    from segue.policy.estimates import Situation
    from segue.policy.rules.view import Job
    from segue.simulation.comparison import Rows
    from segue.simulation.forecast import Expected, Forecast, Sample
    from segue.simulation.traces import Trace

_PRIOR = "prior"
_UNNAMED = "unnamed"
_LONGEST_SECONDS = 100 * 365.25 * 86400


@dataclass(frozen=True)
class _Asked:
    """What is to be planned, as far as it is known before anything is simulated."""

    spec: RunSpec
    history: History
    here: Situation
    now: datetime
    step_seconds: float
    basis: str
    """Where the seconds a step takes come from."""
    notes: tuple[str, ...]


def plan(
    spec: Annotated[Path, typer.Argument(help="TOML run spec, as for `segue run --config`.")],
    *,
    deadline: Annotated[str | None, typer.Option(help="+2h, 06:00, or an ISO time.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal.")] = None,
    step_seconds: Annotated[float | None, typer.Option(min=1e-6, help="Seconds a step, whatever was measured.")] = None,
    work: Annotated[str | None, typer.Option(help="The same for all steps together: 24h.")] = None,
    save_seconds: Annotated[float | None, typer.Option(min=0, help="What a save costs, for the cadence.")] = None,
    traces: Annotated[str, typer.Option(help="Trace file or folder; prior makes them from published hazards.")] = (
        _PRIOR
    ),
    runs: Annotated[int, typer.Option(min=20, max=5000, help="Simulated runs.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated spot.")] = 0,
    store: Annotated[str | None, typer.Option(help="Folder, file:///folder or s3://bucket/prefix.")] = None,
    endpoint_url: Endpoint = None,
    picture: Annotated[Path | None, typer.Option(help="PNG file for a dozen of the simulated runs.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will cost, before anything runs: cost, lateness, preemptions, lost work, cadence.

    Exit code 0: it can be done. 2: it is hopeless, with the reason, or cannot be planned as asked.
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
    _show(facts, expected)


def _spec(
    path: Path, *, deadline: str | None, steps: int | None, store: str | None, endpoint_url: str | None, now: datetime
) -> RunSpec:
    fields = read_toml(path)
    # `segue run` gets these on the command line; no forecast depends on them.
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
            "policy.step_seconds: is not given, and no run has measured it; set it, or give --step-seconds or --work"
        )
        raise SpecError(source="the plan", problems=(problem,))
    if history.committed_step >= spec.steps:
        why = f"run {spec.run_id} has committed step {history.committed_step} of {spec.steps}: nothing is left to do."
        raise HopelessPlanError(reason="nothing_left", why=why, fix="Ask for more steps, or give another run_id.")
    if (spec.steps - history.committed_step) * rate > _LONGEST_SECONDS:
        problem = f"{spec.steps} steps of {rate:.4g} s are more than a hundred years; give fewer, or shorter ones"
        raise SpecError(source="the plan", problems=(problem,))
    measured = any(report.train_steps > 0 for report in history.last_words())
    basis = "as given" if seconds is not None else "measured by the run" if measured else "policy.step_seconds"
    here = estimates.situation(spec, history, now=now)
    return _Asked(spec, history, here, now, rate, basis, notes)


def _history(spec: RunSpec) -> tuple[History, tuple[str, ...]]:
    """What the run's log says; empty where there is none, with a word where the store could not be asked."""
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
        notes += (f"the clamp permits no spot attempt: {span(missing)} more to the deadline would allow the first",)
    told = {name: moments[name].isoformat() if name in moments else None for name in forecast.MOMENTS}
    facts = _facts(asked, expected, job=job) | told
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
    """What a reader of the figures has to know."""
    notes: tuple[str, ...] = ()
    if spec.deadline is None and expected.on_demand_share > 0:
        notes += (
            f"without a deadline a run waits for spot; {expected.on_demand_share:.0%} of the simulated ones found too "
            f"little of it in {span(job.total_seconds)} and are counted as finished on on-demand then",
        )
    if len(spec.pools.spot) > 1:
        notes += ("of several spot pools the cheapest is simulated, as if it were the only one",)
    return notes


def _rows(given: list[Trace], job: Job, *, runs: int, seed: int) -> tuple[list[Rows], tuple[str, ...]]:
    import numpy as np

    from segue.simulation.comparison import made_rows, traced_rows

    random = np.random.default_rng(seed)
    if not given:
        return made_rows(job, runs=runs, random=random, is_quick=True), ()
    rows, short = traced_rows(given, job, runs=runs, random=random)
    return rows, tuple(f"trace {trace.name} is left out: it covers only {span(trace.seconds)}" for trace in short)


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


def _show(facts: dict[str, Any], expected: Forecast) -> None:
    for name, words in _in_words(facts):
        console.print(f"{name:>18}  {words}", markup=False, soft_wrap=True)
    console.print(rows_table([_row(one) for one in expected.policies]))


def _in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as people read them."""
    per_step = f"{facts['steps'] - facts['committed_step']} steps of {facts['step_seconds']:.4g} s"
    cost = (
        f"{facts['cost']:.4g} {facts['currency']}".strip()
        + f" (p5 {facts['cost_p5']:.4g}, p95 {facts['cost_p95']:.4g})"
    )
    is_forced = facts["comes_to"] != facts["policy"]
    a_death = f"{span(facts['lost_by_a_death_seconds'])} a death without notice"
    told = [
        ("work", f"{span(facts['work_seconds'])} ({per_step}, {facts['step_seconds_basis']})"),
        ("policy", facts["policy"] + (", which comes to on-demand alone here" if is_forced else "")),
        ("expected cost", f"{cost}, {facts['cost_share']:.0%} of on-demand only ({facts['on_demand_cost']:.4g})"),
        ("figures from", f"{facts['runs']} simulated runs, seed {facts['seed']}"),
        ("chance of lateness", _lateness(facts)),
        ("preemptions", f"{facts['preemptions']:.1f}"),
        ("lost work", f"{span(facts['lost_seconds'])}, {a_death}"),
        ("cadence", facts["cadence"]),
        ("finish", f"{_moment(facts['finish'])}, on the mean"),
    ]
    if facts["deadline"] is not None:
        safe, start = _moment(facts["latest_safe_moment"]), _moment(facts["latest_spot_start"])
        told += [
            ("deadline", f"{_moment(facts['deadline'])}, slack {span(facts['slack_seconds'])}"),
            ("latest safe moment", f"{safe}: on-demand has to start by then, if nothing is done before"),
            ("latest spot start", f"{start}: after it the clamp permits none, if nothing is done before"),
        ]
    return told + [("note", note) for note in facts["notes"]]


def _lateness(facts: dict[str, Any]) -> str:
    if facts["late_share"] is None:
        return "none: there is no deadline"
    if facts["late_share"] == 0.0:
        return "0: the clamp goes on-demand while that still makes it, as long as steps take what they take here"
    return f"{facts['late_share']:.1%}"


def _row(one: Expected) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "cost": f"{one.cost:.4g}",
        "p5 to p95": f"{one.cost_p5:.4g} to {one.cost_p95:.4g}",
        "of on-demand": f"{one.cost_share:.0%}",
        "late": f"{one.late_share:.1%}",
        "preemptions": f"{one.preemptions:.1f}",
        "takes": span(one.finish_seconds),
    }


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M %Z}"
