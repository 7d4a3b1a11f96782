"""Runs the doctor's rehearsal: the workload trains a few steps on this machine and saves into the run's store."""

from __future__ import annotations

import logging

from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.doctor.check import Result, fail, ok, skipped
from segue.doctor.subject import Rehearsed, Subject
from segue.errors import DrillFailedError
from segue.launch.launcher import Trainer
from segue.launch.output import LastLines
from segue.records import SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import BudgetSpec, RunSpec, SegmentSpec
from segue.spec.pool_prices import PoolSpec
from segue.units import duration, size
from segue.verification.scratch_place import RunPlace, scratch_place
from segue.verification.users_failure import failure_in, failure_in_words

log = logging.getLogger(__name__)

STEPS = 3
LIMIT_SECONDS = 600.0
_ONCE = ("max_failures", "max_transient_failures", "max_out_of_memory", "max_hung", "max_lost_in_place")


class _TimeOver(Exception):
    """The rehearsal exceeded its time limit. The code that catches this exception kills the trainer."""


def rehearse(subject: Subject, *, limit_seconds: float = LIMIT_SECONDS) -> Result:
    """Train a few steps and save them. Write the measured durations and sizes to `subject.rehearsed`.

    The rehearsal uses a separate prefix in the store, and deletes all objects of this prefix at the end. It uses
    neither trackers nor metadata services. If the time limit is exceeded, the rehearsal kills the trainer.
    """
    assert subject.spec is not None
    absent = why_not_here(subject.spec, accelerators=subject.accelerators)
    if absent is not None:
        return skipped(absent)
    with scratch_place(subject.spec, name=".segue-doctor", store=subject.store) as place:
        spec = rehearsal_spec(subject.spec, place)
        runlog = open_run(spec, clock=subject.clock)
        output = LastLines(lambda _: None)
        give_up_at = subject.clock.monotonic() + limit_seconds

        def give_up(trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
            if subject.clock.monotonic() > give_up_at:
                raise _TimeOver

        try:
            ended = run_here(spec, runlog, on_line=output, watch=give_up)
        except _TimeOver:
            return fail(
                f"{spec.steps} steps and their saves took more than {duration(limit_seconds)}",
                fix="find out why the recipe is slow before its first step; try a smaller data set or model.",
            )
        history = read_history(runlog)
        if not history.is_finished(spec):
            why = failure_in_words(failure_in(history)) or f"{ended.reason}; its output: {output.why() or 'none'}"
            return _failed(DrillFailedError(workload=spec.workload, why=why))
        subject.rehearsed = measured(history)
    return _in_words(spec, subject.rehearsed)


def why_not_here(spec: RunSpec, *, accelerators: int) -> str | None:
    """Return the reason why a machine with this number of accelerators cannot rehearse a run that trains on a cluster.

    If the rehearsal is possible, return None. The function is pure.
    """
    needed = spec.ranks_of_a_node or 1
    if not spec.trains_elsewhere or spec.device != "cuda" or accelerators >= needed:
        return None
    cluster = "Slurm" if spec.slurm is not None else "Ray"
    return (
        f"the run trains on a {cluster} cluster with device = cuda, and this machine has {accelerators} accelerators "
        f"for {needed} ranks of a node; make the rehearsal on a node of the cluster"
    )


def rehearsal_spec(spec: RunSpec, place: RunPlace) -> RunSpec:
    """Return the run spec of the rehearsal.

    The rehearsal has the spec of the run, but trains only a few steps, with a full save after each step. It buys no
    capacity. If the run trains on a cluster, this machine trains the ranks of one node, and segue submits no job.
    """
    return spec.model_copy(
        update={
            "run_id": "rehearsal",
            "steps": min(STEPS, spec.steps),
            "store": place.store,
            "deadline": None,
            "notices": (),
            "trackers": {},
            "pools": PoolSpec(),
            "budget": BudgetSpec(),
            "segment": SegmentSpec(),
            "slurm": None,
            "ray": None,
            "ranks": spec.ranks_of_a_node,
            "checkpoints": spec.checkpoints.model_copy(
                update={"every_steps": 1, "every_seconds": None, "full_every": 1, "fast_folder": place.fast_folder}
            ),
            "continuity": spec.continuity.model_copy(update={"rehearsal": "off"}),
            "policy": spec.policy.model_copy(update=dict.fromkeys(_ONCE, 1)),
        }
    )


def measured(history: History) -> Rehearsed:
    """Return the durations and the size of the state, as measured in a finished rehearsal."""
    report = history.last_reports()[-1]
    newest = history.newest
    return Rehearsed(
        save_seconds=report.save_seconds,
        step_seconds=report.train_seconds / report.train_steps if report.train_steps else 0.0,
        state_bytes=newest.manifest.size_bytes if newest is not None else 0,
    )


def _failed(error: DrillFailedError) -> Result:
    return fail(
        f"it cannot be trained here: {error.why}", fix="correct the cause; `segue drill` shows the whole traceback."
    )


def _in_words(spec: RunSpec, found: Rehearsed) -> Result:
    save = f" in {duration(found.save_seconds)}" if found.save_seconds is not None else ""
    step = f", a step took {duration(found.step_seconds)}" if found.step_seconds else ""
    ranks = f" by {spec.ranks} ranks" if (spec.ranks or 1) > 1 else ""
    return ok(f"{spec.steps} steps trained{ranks}; {size(found.state_bytes)} of state saved{save}{step}")
