"""Computes in Python the numbers that `segue plan` shows on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segue.clock import SystemClock
from segue.controller.costs.prices import at_current_prices
from segue.errors import RunNotFoundError
from segue.runlog.history import History
from segue.runlog.open import find_run
from segue.spec import RunSpec

if TYPE_CHECKING:
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
    """Simulate the rest of a run without training.

    The result contains the expected cost, lateness, preemptions and lost work. If the spec's store contains the run,
    the plan begins at the run's current step and uses the run's measurements. `traces` is a trace file or a folder of
    trace files. Without `traces`, the plan uses synthetic traces from published hazards.

    Raises:
        DeadlinePassedError, HopelessPlanError: the run cannot meet the request. The message gives the reason.
        SpecError: the step time is not known. Set `step_seconds` or `policy.step_seconds`.
        StoreUnreachableError: the store cannot be read.
        PriceSourceError: the source of current prices gives no prices.
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
