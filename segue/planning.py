"""Planning from Python: the figures of `segue plan` and `segue simulate` without a command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segue.clock import SystemClock
from segue.controller.costs.prices import at_current_prices
from segue.errors import RunNotFoundError
from segue.policies import POLICIES
from segue.runlog.history import History
from segue.runlog.open import find_run
from segue.spec import RunSpec

if TYPE_CHECKING:
    from segue.simulation.comparison import Figures
    from segue.simulation.plan_ahead import Plan


def plan(
    spec: RunSpec,
    *,
    traces: Path | None = None,
    step_seconds: float | None = None,
    save_seconds: float | None = None,
    runs: int = 200,
    seed: int = 0,
) -> Plan:
    """What to expect of the rest of a run, by simulation: cost, lateness, preemptions, lost work. Nothing is run.

    A run that the spec's store knows is planned from where it is, with what it has measured. `traces` is a trace file
    or a folder of them; without it, synthetic traces are drawn from published hazards.

    Raises:
        DeadlinePassedError, HopelessPlanError: the run cannot be done as asked, with the reason.
        SpecError: the time of a step is not known: give `step_seconds` or `policy.step_seconds`.
        StoreUnreachableError: the store cannot be read.
        PriceSourceError: the source of current prices does not give them.
    """
    from segue.simulation.plan_ahead import plan_ahead
    from segue.simulation.traces import read_traces

    try:
        history = find_run(spec.run_id, spec.store)[1]
    except RunNotFoundError:
        history = History()
    return plan_ahead(
        at_current_prices(spec),
        history,
        now=SystemClock().now(),
        traces=[] if traces is None else read_traces(traces),
        step_seconds=step_seconds,
        save_seconds=save_seconds,
        runs=runs,
        seed=seed,
    )


def simulate(
    *,
    work_seconds: float,
    deadline_seconds: float,
    changeover_seconds: float = 360.0,
    price_ratio: float = 3.0,
    policies: Sequence[str] = tuple(POLICIES),
    traces: Path | None = None,
    runs: int = 400,
    seed: int = 0,
) -> list[Figures]:
    """Compare policies on the same availability of spot: cost shares of on-demand only, preemptions, missed deadlines.

    A policy may carry parameters, as in `threshold:preemptions=5`. While on on-demand, a standby that waits on the spot
    pool shows when spot is back, and hands over without a pause.

    Raises:
        SpecError: there is no such policy, or not with such parameters.
        TraceError: a trace cannot be read, or all are too short.
    """
    import numpy as np

    from segue.policy.rules.view import Job
    from segue.simulation.comparison import compare, contender, synthetic_rows, traced_rows
    from segue.simulation.traces import read_traces

    job = Job(deadline_seconds, work_seconds, changeover_seconds, price_ratio, "sentinel", True)
    random = np.random.default_rng(seed)
    if traces is None:
        rows = synthetic_rows(job, runs=runs, random=random)
    else:
        rows, _ = traced_rows(read_traces(traces), job, runs=runs, random=random)
    figures, _ = compare([contender(name, job) for name in policies], rows, job=job, random=random)
    return figures
