"""The demo: the main job on real data, with a kill, a notice and a deadline, against the run it would have been."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect.client.schemas.objects import State
from segue.deployments.process.follow import follow, open_client, step_bar, trigger
from segue.deployments.process.stack import LocalStack

from segue.checkpoints.format.snapshot import raw_bytes
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import SegueError
from segue.launch.launcher import Trainer
from segue.records import Capacity, Heartbeat, SegmentPlan
from segue.reports.console import console, errors
from segue.reports.run_plot import draw
from segue.reports.tables import segments_table
from segue.runlog.heartbeat import last_heartbeat
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

RECIPE = "examples.flights:build"
STEPS = 2400
_PRICE_RATIO = 3.0
_SHARES = (0.28, 0.52, 0.67, 0.82)
"""Of the steps: when spot is taken away, as long as the run is there."""


class DemoFailedError(SegueError):
    """The demo did not show what it promises."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the demo did not come out as promised: {why} The logs are in .segue/logs.")


@dataclass
class Preemptions:
    """What the provider does to spot in the demo: a kill, then notices until the policy leaves it."""

    steps: int
    done: list[str] = field(default_factory=list)

    def __call__(self, history: History, beat: Heartbeat | None) -> str | None:
        """Preempt when the next point of the script is reached; says what was done."""
        plan = history.open_plan
        attempt = history.attempt_of(plan.segment, plan.attempt) if plan else None
        if plan is None or attempt is None or beat is None or beat.phase != "training":
            return None
        if plan.capacity is not Capacity.SPOT or len(self.done) == len(_SHARES):
            return None  # Nobody takes on-demand machines away.
        if beat.step < _SHARES[len(self.done)] * self.steps:
            return None
        if not self.done:
            os.kill(beat.trainer_pid, signal.SIGKILL)
            self.done.append("kill")
            return f"step {beat.step}: SIGKILL to the trainer, without a word"
        os.kill(attempt.claim.segment_pid, signal.SIGTERM)
        self.done.append("notice")
        return f"step {beat.step}: termination notice to the segment"


def run_demo(folder: Path, *, keep: bool) -> None:
    """Everything from an empty folder to the table, the comparison and the picture.

    Raises:
        DemoFailedError: the run did not finish, came late, or is not bit-identical to the undisturbed one.
        OrchestratorError: the local Prefect did not come up.
    """
    stack = LocalStack(folder, home=Path.cwd(), say=lambda text: errors.print(f"[dim]{text}[/]"))
    shutil.rmtree(folder / "demo", ignore_errors=True)
    started = time.monotonic()
    try:
        stack.start()
        console.print(f"[dim]up in {time.monotonic() - started:.0f} s; Prefect UI: {stack.url}[/]")
        console.rule("the run it should be: undisturbed, on this machine", align="left")
        reference = _reference(folder)
        console.rule("the main job: spot, a kill, a notice, a deadline", align="left")
        spec = _main_spec(folder, reference)
        with stack.settings():
            runlog, state, seconds = _main_job(spec)
        _tell(folder, stack, reference=reference, runlog=runlog, spec=spec, state=state, seconds=seconds)
        if keep:
            console.print("server and workers stay up; Ctrl-C ends them")
            threading.Event().wait()
    finally:
        stack.stop()


def _spec(folder: Path, run_id: str, **fields: object) -> RunSpec:
    common = {
        "run_id": run_id,
        "recipe": RECIPE,
        "steps": STEPS,
        "config": {"schedule_steps": STEPS},
        "threads": 1,
        "seed": 2013,
        "store": {"url": str(folder.absolute() / "demo")},
        "checkpoints": {"every_steps": STEPS // 20},
        "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 10},
    }
    return RunSpec.parse(common | fields, source="the demo's spec")


def _reference(folder: Path) -> RunLog:
    spec = _spec(folder, "undisturbed")
    runlog = open_run(spec, clock=SystemClock())
    with step_bar() as bar:
        task = bar.add_task("undisturbed", total=spec.steps, loss="")

        def watch(trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
            beat = last_heartbeat(runlog, read_history(runlog).attempt_of(plan.segment, plan.attempt))
            loss = f"loss {beat.loss:.4f}" if beat and beat.loss is not None else ""
            bar.update(task, completed=beat.step if beat else 0, loss=loss)

        lines: list[str] = []
        decision = run_here(spec, runlog, watch=watch, on_line=lines.append)
        bar.update(task, completed=read_history(runlog).committed_step)
    if decision.action != "finished":
        raise DemoFailedError(f"the undisturbed run ended as {decision.action}: {decision.reason}.")
    return runlog


def _main_spec(folder: Path, reference: RunLog) -> RunSpec:
    """The same training with a deadline that two preemptions bring near: slack for two of them.

    A machine much slower now than it was for the undisturbed run has slack for one.
    """
    report = read_history(reference).last_reports()[-1]
    step_seconds = report.train_seconds / report.train_steps
    changeover = report.startup_seconds + 6.0
    policy = {"changeover_seconds": changeover, "detection_seconds": 1.0, "step_seconds": step_seconds}
    work = STEPS * step_seconds * 1.05
    until_decided, at_risk = 6.0, STEPS // 20 * step_seconds
    needed = work + 2 * changeover + at_risk + 1.0
    deadline = datetime.now(UTC) + timedelta(seconds=until_decided + needed + 2 * changeover)
    # A name of its own each time: this Prefect may remember the flow runs of an earlier demo in the same folder.
    return _spec(folder, f"flights-{datetime.now(UTC):%H%M%S}", deadline=deadline, policy=policy)


def _main_job(spec: RunSpec) -> tuple[RunLog, State, float]:
    started = time.monotonic()
    with open_client() as client:
        runlog = open_run(spec, clock=SystemClock())
        state = follow(client, trigger(client, spec), runlog, spec, observer=Preemptions(spec.steps))
    return runlog, state, time.monotonic() - started


def _tell(
    folder: Path, stack: LocalStack, *, reference: RunLog, runlog: RunLog, spec: RunSpec, state: State, seconds: float
) -> None:
    history = read_history(runlog)
    console.print(segments_table(history))
    if history.committed_step < spec.steps:
        raise DemoFailedError(f"the run ended at step {history.committed_step} as {state.name}: {state.message}.")
    identical, tensors = _compare(reference, runlog)
    picture = folder / "demo" / "flights.png"
    picture.write_bytes(draw(runlog))
    words = "[bold green]bit-identical[/]" if identical else "[bold red]NOT identical[/]"
    console.print(f"final weights    {words} to the undisturbed run ({tensors} tensors compared byte by byte)")
    console.print(f"deadline         {_punctuality(history, spec)}", markup=False)
    console.print(f"cost             {_cost(history)}", markup=False)
    console.print(f"main job         {seconds:.0f} s", markup=False)
    console.print(f"picture          {picture}", markup=False, soft_wrap=True)
    console.print(f"Prefect UI       {stack.url}/runs", markup=False)
    if not identical:
        raise DemoFailedError("the final weights differ.")
    if _seconds_early(history, spec) < 0:
        raise DemoFailedError("it came late, as a machine can make it that is far busier than a minute before.")


def _compare(reference: RunLog, runlog: RunLog) -> tuple[bool, int]:
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


def _cost(history: History) -> str:
    spot, on_demand = (history.seconds_on(capacity) for capacity in (Capacity.SPOT, Capacity.ON_DEMAND))
    share = (spot / _PRICE_RATIO + on_demand) / max(spot + on_demand, 1e-9)
    return f"{spot:.0f} s of spot, {on_demand:.0f} s of on-demand: {share:.0%} of the same seconds all on on-demand"
