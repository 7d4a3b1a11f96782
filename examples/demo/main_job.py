"""The demo: the main job on real data, with a kill, a notice and a deadline, compared with an undisturbed run."""

from __future__ import annotations

import shutil
import time
from contextlib import chdir
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import State

from examples.demo.provider import Provider
from examples.demo.starts import Measured, measured, what_took_longer, why_late
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.curves.frame import curve
from segue.deployments.follow import follow, open_client, trigger
from segue.deployments.local_stack.stack import LocalStack
from segue.errors import SegueError
from segue.records import Capacity, StopReason
from segue.reports.console import console
from segue.reports.cost_report import cost_report
from segue.reports.run_plot import draw
from segue.reports.tables import segments_table
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.testing.metadata import FakeMetadataService

RECIPE = "examples.flights:build"
STEPS, STEPS_WITH_SERVICE = 1000, 2000
"""A metadata service is asked every 5 s: after the notice, training must last longer than that on a fast machine."""
_SAVES = 20


class DemoFailedError(SegueError):
    """The demo did not show what it promises."""

    def __init__(self, why: str, *, logs: Path) -> None:
        self.why, self.logs = why, logs
        super().__init__(f"the demo failed: {why}", fix=f"see the logs in {logs}, then run it again.")


def run_demo(stack: LocalStack, service: FakeMetadataService | None = None) -> None:
    """Run everything, from an empty folder to the table, the comparison and the plot, on a stack that is starting.

    With a metadata service the machines are those of its cloud, and the notice comes through it.

    Raises:
        DemoFailedError: the run did not finish, was late, is not bit-identical to the undisturbed one, or did not show
            its events, although nothing took longer than before.
        OrchestratorError: the local Prefect did not come up.
    """
    folder = stack.folder
    shutil.rmtree(folder / "demo", ignore_errors=True)
    with chdir(stack.home):  # Where the example's package can be imported.
        stack.start()
        with stack.settings():
            console.rule("reference: the same run, undisturbed", align="left")
            steps = STEPS if service is None else STEPS_WITH_SERVICE
            reference, before = _reference(stack, steps)
            console.rule("main job: spot, a kill, a notice, a deadline", align="left")
            # The platform is found by its metadata service. Without a service there is no platform to look for.
            spec = _main_spec(folder, before, steps, notices=() if service is None else None)
            outcome = _main_job(spec, service)
            _show(stack, reference=reference, outcome=outcome, spec=spec, before=before)


def _spec(folder: Path, run_id: str, steps: int, **fields: object) -> RunSpec:
    common = {
        "run_id": run_id,
        "recipe": RECIPE,
        "steps": steps,
        "config": {"schedule_steps": steps},
        "threads": 1,
        "seed": 2013,
        "store": {"url": str(folder / "demo")},
        "checkpoints": {"every_steps": steps // _SAVES},
        "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 10},
        "notices": (),
    }
    return RunSpec.parse(common | fields, source="the demo's spec")


def _reference(stack: LocalStack, steps: int) -> tuple[RunLog, Measured]:
    """The same run without a deadline and without disturbances, and how long its start through Prefect took."""
    spec = _spec(stack.folder, _new_name("undisturbed"), steps)
    with open_client() as client:
        runlog, requested_at = open_run(spec, clock=SystemClock()), datetime.now(UTC)
        state = follow(client, trigger(client, spec), runlog, spec)
    history = read_history(runlog)
    if history.committed_step < steps:
        raise DemoFailedError(f"the undisturbed run ended as {state.name}: {state.message}.", logs=stack.logs)
    return runlog, measured(history, requested_at=requested_at)


def _main_spec(folder: Path, before: Measured, steps: int, *, notices: tuple[str, ...] | None) -> RunSpec:
    """The spec of the same training with a deadline that the kill, the notice and a wait for spot bring near."""
    seconds = before.seconds_to_deadline(steps=steps, save_every=steps // _SAVES)
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    return _spec(folder, _new_name("flights"), steps, deadline=deadline, policy=before.policy(), notices=notices)


def _new_name(name: str) -> str:
    """A new name each time: this Prefect may know the flow runs of an earlier demo in the same folder."""
    return f"{name}-{datetime.now(UTC):%H%M%S}"


@dataclass(frozen=True)
class _Outcome:
    """How the main job ended."""

    runlog: RunLog
    state: State
    seconds: float
    shown: tuple[str, ...]


def _main_job(spec: RunSpec, service: FakeMetadataService | None) -> _Outcome:
    started = time.monotonic()
    with open_client() as client:

        def set_spot(is_up: bool) -> None:
            client.update_work_pool("spot", WorkPoolUpdate(is_paused=not is_up))

        set_spot(True)
        provider = Provider(spec.steps, set_spot, service)
        runlog = open_run(spec, clock=SystemClock())
        state = follow(client, trigger(client, spec), runlog, spec, observer=provider)
        set_spot(True)
    return _Outcome(runlog, state, time.monotonic() - started, tuple(provider.done))


def _show(stack: LocalStack, *, reference: RunLog, outcome: _Outcome, spec: RunSpec, before: Measured) -> None:
    history = read_history(outcome.runlog)
    console.print(segments_table(history))
    if history.committed_step < spec.steps:
        state = outcome.state
        ended = f"{state.name}: {state.message}"
        raise DemoFailedError(f"the run ended at step {history.committed_step} as {ended}.", logs=stack.logs)
    identical, tensors = _compare(reference, outcome.runlog)
    plot = stack.folder / "demo" / "flights.png"
    plot.write_bytes(draw(outcome.runlog))
    equal = "bit-identical" if identical else "NOT identical"
    rows = {
        "shown": ", ".join((*outcome.shown, *_way_back(history))),
        "notice": _notices(history),
        "final weights": f"{equal} to the undisturbed run ({tensors} tensors)",
        "final loss": _final_losses(reference, outcome.runlog),
        "deadline": _punctuality(history, spec),
        "cost": _cost(history, spec),
        "main job": f"{outcome.seconds:.0f} s",
        "plot": plot,
        "Prefect UI": f"{stack.url}/runs",
    }
    for name, value in rows.items():
        console.print(f"{name:<15}  {value}", markup=False, soft_wrap=True)
    if not identical:
        raise DemoFailedError("the final weights differ.", logs=stack.logs)
    if _seconds_early(history, spec) < 0:
        why = why_late(history, before, logs=stack.logs)
        raise DemoFailedError(f"the run was late: {why}.", logs=stack.logs)
    not_shown = ", ".join(sorted({"kill", "notice", "escalation"} - set(outcome.shown)))
    slower = what_took_longer(history, before, logs=stack.logs)
    if not_shown and not slower:
        raise DemoFailedError(f"not shown: {not_shown}, although nothing took longer than before.", logs=stack.logs)
    if not_shown:
        # The run is right: with less time to spare it goes to on-demand before the provider reaches that event.
        why = f"{not_shown}: the time to the deadline became short before it. A quieter machine shows it. "
        console.print(f"{'not shown':<15}  {why}{'; '.join(slower)}", markup=False, soft_wrap=True)


def _notices(history: History) -> str:
    """The notices that ended attempts, and how long before the end of the machine each of them came."""
    reports = [report for report in history.last_reports() if report.stop_reason is StopReason.NOTICE]
    found = [report.notice for report in reports if report.notice is not None]
    return "; ".join(f"{notice.kind}, {notice.grace_seconds:.0f} s before the end of the machine" for notice in found)


def _way_back(history: History) -> tuple[str, ...]:
    """The return from on-demand to spot, if there was one: without time to spare, the run rightly makes none."""
    order = [attempt.claim.capacity for attempt in history.attempts]
    return ("return to spot",) if (Capacity.ON_DEMAND, Capacity.SPOT) in pairwise(order) else ()


def _final_losses(reference: RunLog, runlog: RunLog) -> str:
    """The loss of the last step of both runs."""
    (step, undisturbed), (other, main) = (curve(log)[["step", "loss"]].iloc[-1] for log in (reference, runlog))
    same = f"{main:.6f} at step {step:.0f}"
    return (
        f"{same}, in both runs" if step == other and main == undisturbed else f"{same}; undisturbed {undisturbed:.6f}"
    )


def _compare(reference: RunLog, runlog: RunLog) -> tuple[bool, int]:
    # Imported here, because these modules import torch and the stack should be up soon.
    from segue.checkpoints.format.snapshot import raw_bytes
    from segue.checkpoints.loading.snapshot import read_checkpoint

    snapshots = []
    for log in (reference, runlog):
        newest = read_history(log).newest
        if newest is None:
            return False, 0
        snapshots.append(read_checkpoint(log.store, run_id=log.run_id, manifest=newest.manifest))
    one, other = ({n: t for n, t in s.tensors.items() if n.startswith("model.")} for s in snapshots)
    same = one.keys() == other.keys() and all(bytes(raw_bytes(one[n])) == bytes(raw_bytes(other[n])) for n in one)
    return same, len(one)


def _seconds_early(history: History, spec: RunSpec) -> float:
    finished = history.decisions[-1].written_at
    return (spec.deadline - finished).total_seconds() if spec.deadline else 0.0


def _punctuality(history: History, spec: RunSpec) -> str:
    early = _seconds_early(history, spec)
    return f"met, {early:.0f} s early" if early >= 0 else f"MISSED by {-early:.0f} s"


def _cost(history: History, spec: RunSpec) -> str:
    spot, on_demand = (history.seconds_on(capacity) for capacity in (Capacity.SPOT, Capacity.ON_DEMAND))
    report = cost_report(spec, history)
    return f"{spot:.0f} s of spot, {on_demand:.0f} s of on-demand: {report.comparison}; prices made up for the demo"
