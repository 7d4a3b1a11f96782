"""Runs a drill: trains a recipe once undisturbed and once with SIGKILLs and notices, and compares the final states."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from segue.checkpoints.format.names import FOLDER
from segue.clock import Clock, SystemClock
from segue.continuity.noise import Noise, noise_of, unreproducible_of
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import DrillFailedError
from segue.hosting import require_program
from segue.interop.load import load_checkpoint
from segue.launch.assignment import Assignment
from segue.launch.launcher import Trainer
from segue.launch.output import LastLines, Line
from segue.notices.disturbance import DisturbanceKind
from segue.policy.decide import Decision
from segue.recipe import import_build
from segue.records import SegmentPlan, VerdictKind
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import BudgetSpec, RunSpec, StoreSpec
from segue.spec.pool_prices import PoolSpec
from segue.trainer.replays.fresh import FreshProcesses, ReplayRequest
from segue.verification.drill_comparison import differing, differing_before, resumes_of, worst
from segue.verification.drill_report import DrillReport
from segue.verification.folder_entries import folder_differences
from segue.verification.local_disturber import LocalDisturber, Target
from segue.verification.scratch_place import RunPlace, scratch_place
from segue.verification.shared_folder import SharedFolder
from segue.verification.users_failure import failure_in, failure_in_words, is_raised

__all__ = ["DrillReport", "drill", "drill_spec"]

log = logging.getLogger(__name__)

_LINES_KEPT = 20
_LONGEST_WAIT_SECONDS = 900.0
_DISTURBED = "killed"
_HEARTBEAT_SECONDS = 0.2
_BUDGETS = ("max_failures", "max_transient_failures", "max_out_of_memory", "max_hung")

Progress = Callable[[str, int], None]
"""A function that the drill calls with the name of a run (reference or killed) and the run's newest committed step."""


def _no_progress(run: str, step: int) -> None:
    return


def _log(line: Line) -> None:
    log.info("%s", line.text)


def drill(
    recipe: str, *, config: Mapping[str, Any] | None = None, steps: int = 90, kills: int = 2, notices: int = 0
) -> DrillReport:
    """Train `recipe` twice for `steps` steps, once with SIGKILLs and notices, and compare the two final states.

    `recipe` has the form package.module:function, and is imported from the current folder. The function gets `config`.
    Both runs use separate processes and a temporary folder. The call blocks until both runs have ended.
    `DrillReport.passed` shows whether the drill passed.

    Raises:
        SpecError, RecipeError: the drill cannot run with these arguments. Nothing was started.
        DrillFailedError: the recipe does not reach its goal even without a kill. The error contains the recipe's
        exception.
    """
    fields = {"run_id": "drill", "recipe": recipe, "steps": steps, "config": dict(config or {})}
    return drill_spec(RunSpec.parse(fields, source="the call of segue.drill"), kills=kills, notices=notices)


def drill_spec(
    spec: RunSpec,
    *,
    kills: int,
    notices: int = 0,
    progress: Progress = _no_progress,
    folder: Path | None = None,
    store: StoreSpec | None = None,
) -> DrillReport:
    """Run `spec` twice, the second time with kills and notices. Report whether each resume continued the run correctly.

    Both runs have the settings of the spec, except for the save interval. This interval is a number of steps, and is
    short enough for a commit before and after each disturbance. Both runs commit in `folder` (a temporary folder by
    default), or below a separate prefix in `store`, and never in the run of the spec. If the drill passes, it deletes
    the objects below the prefix. A program runs in the current folder, and finds the files that its earlier attempts
    left there. In every second resume, counted back from the last one, the drill hides these files, as if the resume
    ran on another machine.

    Raises:
        RecipeError, ProgramError: the recipe or program does not exist. Nothing was started.
        StoreUnreachableError: the store cannot be used. Nothing was started.
        DrillFailedError: the run does not reach its goal even without a kill.
    """
    if spec.program is not None:
        require_program(spec.program.command)
    else:
        import_build(spec.recipe_path)
    clock: Clock = SystemClock()
    started = clock.monotonic()
    kinds = [DisturbanceKind.KILL] * kills + [DisturbanceKind.NOTICE] * notices
    with scratch_place(spec, name="segue-drill", folder=folder, store=store) as place:
        reference = _prepared(spec, place, "reference", count=len(kinds))
        found = SharedFolder(Path.cwd() if spec.program is not None else None, apart=place)
        runlog = open_run(reference, clock=clock)
        output = LastLines(_log)

        def report_progress(trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
            progress("reference", read_history(runlog).committed_step)

        ended = run_here(reference, runlog, on_line=output, watch=report_progress)
        undisturbed = read_history(runlog)
        _final(undisturbed, reference, why=ended.reason, output=output)
        shared = found.written()

        killed = _prepared(spec, place, _DISTURBED, count=len(kinds))
        runlog = open_run(killed, clock=clock)
        disturber = LocalDisturber(
            _targets(spec, kinds),
            chance=random.Random(spec.seed),
            every_steps=killed.checkpoints.every_steps or 1,
            witness_steps=killed.continuity.witness_steps,
            progress=lambda step: progress("killed", step),
        )
        with found.hiding() as hidden:

            def before() -> None:
                if disturber.is_next_elsewhere:
                    hidden.hide()

            ended = run_here(killed, runlog, on_line=_log, watch=disturber, before=before)
        history = read_history(runlog)
        hits = disturber.hits(history)
        report = _report(spec, kinds, undisturbed=undisturbed, history=history, ended=ended, hits=hits)
        if report.differing and not report.noise and report.verdict is not VerdictKind.BROKEN:
            report = _with_noise(report, reference, clock=clock)
        if FOLDER in report.differing:
            report = report.model_copy(update={"of_folder": _of_folder(reference, killed)})
        place.keep_if(store is not None and not report.passed)
    facts = {
        "seconds": round(clock.monotonic() - started, 2),
        "kept": place.kept,
        "shared": shared,
        "hidden": hidden.names,
    }
    return report.model_copy(update=facts)


def _report(
    spec: RunSpec,
    kinds: Sequence[DisturbanceKind],
    *,
    undisturbed: History,
    history: History,
    ended: Decision,
    hits: Mapping[str, DisturbanceKind],
) -> DrillReport:
    made = list(hits.values())
    resumes = resumes_of(history, hits)
    finished = history.newest if ended.action == "finished" else None
    whole = undisturbed.newest
    assert whole is not None, "a run without a checkpoint has not reached its goal"
    differ = differing(whole, finished) if finished else ()
    apart = differing_before(undisturbed, history) if differ or not finished else None
    failure = failure_in(history) if ended.action == "failed" else None
    measured = (Noise(resume.verdict.noise) for resume in resumes)
    noise = dict(reduce(or_, measured, Noise(history.rehearsed_noise)).floats)
    unreproducible = next(filter(None, (unreproducible_of(resume.verdict) for resume in resumes)), None)
    return DrillReport(
        recipe=spec.workload,
        steps=spec.steps,
        kills=made.count(DisturbanceKind.KILL),
        notices=made.count(DisturbanceKind.NOTICE),
        missed=tuple(kind for kind in dict.fromkeys(kinds) if kind not in made),
        identical=finished is not None and not differ,
        verdict=worst(resumes),
        verdicts=tuple(resume.verdict for resume in resumes),
        resumes=resumes,
        differing=differ or (apart[1] if apart is not None else ()),
        reached=whole.manifest.step,
        apart_from=apart[0] if apart is not None else None,
        ended="finished" if finished is not None else f"{ended.action}: {failure_in_words(failure) or ended.reason}",
        failure=failure,
        noise=noise,
        unreproducible=unreproducible,
        seconds=0.0,
    )


def _of_folder(*runs: RunSpec) -> tuple[str, ...]:
    """Return the differences between the folders in the newest checkpoints of two runs."""
    states = (load_checkpoint(run.run_id, store=run.store) for run in runs)
    one, other = (state.get(FOLDER, {}).get("files", {}) for state in states)
    return folder_differences(*({name: file.numpy().tobytes() for name, file in each.items()} for each in (one, other)))


def _with_noise(report: DrillReport, reference: RunSpec, *, clock: Clock) -> DrillReport:
    """Replay steps of the undisturbed run, and add to the report whether the final states differ only by noise."""
    if reference.recipe is None or report.unreproducible is not None:
        return report
    runlog = open_log(reference, clock=clock)
    history = read_history(runlog)
    checkpoint = next((each for each in reversed(history.usable) if each.rows), None)
    plan = next((entry.plan for entry in reversed(history.decisions) if entry.plan is not None), None)
    if checkpoint is None or plan is None:
        return report
    assignment = Assignment(spec=reference, plan=plan)
    request = ReplayRequest(assignment=assignment, checkpoint=checkpoint.ref, steps=len(checkpoint.rows))
    give_up_at = clock.monotonic() + _LONGEST_WAIT_SECONDS
    made = FreshProcesses(request, lambda: clock.monotonic() < give_up_at, clock).replays(own=None)
    found = noise_of(checkpoint.rows, (), made.rows, is_whole=False, unit=made.unit)
    is_exact = report.verdict is VerdictKind.EXACT
    verdict = VerdictKind.EQUIVALENT if found.floats and is_exact else report.verdict
    facts = {"noise": dict(found.floats), "unreproducible": found.unreproducible, "verdict": verdict}
    return report.model_copy(update=facts)


def _prepared(spec: RunSpec, place: RunPlace, name: str, *, count: int) -> RunSpec:
    given = spec.checkpoints
    # A drill is itself a rehearsal. Only a run with rehearsals may ask fresh processes whether a difference is noise.
    rehearsal = "warn" if name == _DISTURBED and spec.continuity.rehearsal != "off" else "off"
    every = min(given.every_steps or spec.steps, _interval(spec, count))
    liveness = {"heartbeat_seconds": min(_HEARTBEAT_SECONDS, spec.liveness.heartbeat_seconds)}
    return spec.model_copy(
        update={
            "run_id": name,
            "store": place.store,
            "deadline": None,
            # A drill buys nothing, so it needs no budget and no source of prices.
            "pools": PoolSpec(),
            "budget": BudgetSpec(),
            # With a save interval in seconds, each slow step would have a commit after it, and a kill would leave no
            # step to compare.
            "checkpoints": given.model_copy(
                update={"every_steps": every, "every_seconds": None, "fast_folder": place.fast_folder}
            ),
            "liveness": spec.liveness.model_copy(update=liveness),
            "continuity": spec.continuity.model_copy(update={"rehearsal": rehearsal}),
            "policy": spec.policy.model_copy(update=dict.fromkeys(_BUDGETS, 1)),
        }
    )


def _interval(spec: RunSpec, count: int) -> int:
    # There must be room for a commit before each disturbance and for one after the last disturbance.
    return max(spec.steps // (count + 2), 1)


def _targets(spec: RunSpec, kinds: Sequence[DisturbanceKind]) -> list[Target]:
    order = random.Random(spec.seed).sample(list(kinds), len(kinds))
    return [Target(_interval(spec, len(kinds)) * number, kind) for number, kind in enumerate(order, 1)]


def _final(history: History, spec: RunSpec, *, why: str, output: LastLines) -> None:
    """If the run has not reached its goal, raise an error."""
    if history.newest is None or not history.is_finished(spec):
        failure = failure_in(history)
        if failure is None:
            # Processes that end without a report leave only their output.
            raise DrillFailedError(workload=spec.workload, why=why, traceback="\n".join(output.newest(_LINES_KEPT)))
        if not is_raised(failure):
            raise DrillFailedError(workload=spec.workload, why=failure.message, fix="")
        raise DrillFailedError(workload=spec.workload, why=failure_in_words(failure), traceback=failure.traceback)
