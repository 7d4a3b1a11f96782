"""Publishes and evaluates a candidate in a process: `python -m segue.retraining.versions.job_main JOB RESULT`."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.continuity.recipe_diff import CODE
from segue.credentials import redacted
from segue.data.files import checked_copies
from segue.data.frames import read_frame
from segue.errors import PublishError, RunBegunError, SegueError
from segue.hosting import without_training
from segue.interop.export_files import plain_state
from segue.interop.import_weights import import_weights
from segue.interop.load import choose_checkpoint, read_verified
from segue.recipe import import_build
from segue.reports.cost_report import cost_report
from segue.reports.summary import late_seconds_at_end
from segue.retraining.evaluation import Scores, compare
from segue.retraining.model_record import Candidate, Comparison, SlotStart, Training
from segue.retraining.models import ModelsLog
from segue.retraining.program_check import require_publishable
from segue.retraining.promotion import Promotion, decide
from segue.retraining.slots import store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.candidate_jobs import JOB, AnyJob, BeginJob, CheckJob, EvaluateJob, JobResult, MirrorJob
from segue.retraining.versions.mlflow_mirror import mirror
from segue.retraining.versions.scoring import (
    built_model,
    called,
    nan_predictions,
    nan_weights,
    published_model,
    require_functions,
    scores_of,
)
from segue.retraining.versions.version_files import (
    PROGRAM,
    WEIGHTS,
    get_artifact,
    program_bytes,
    put_artifact,
    weights_bytes,
)
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.base import Store, StoreReadError, StoreWriteError

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMED = 3
_COMPILED = "_orig_mod."


def main() -> None:
    """Read the job, do the job, and write the result. If the job fails, write the error as the result."""
    request, result = map(Path, sys.argv[1:])
    job = JOB.validate_json(request.read_bytes())
    try:
        with without_training("an import of what publishes or evaluates a version reached a training loop"):
            done = _done(job)
    except (StoreReadError, StoreWriteError) as error:
        done = JobResult(error=str(error), is_of_the_store=True)
    except SegueError as error:
        done = JobResult(error=str(error))
    except Exception as error:  # The user's code may raise any exception; the flow shows it.
        said = redacted(f"{type(error).__name__}: {error}")
        done = JobResult(error=said, traceback=redacted(traceback.format_exc()))
    result.write_text(done.model_dump_json())


def _done(job: AnyJob) -> JobResult:
    if isinstance(job, EvaluateJob):
        return JobResult(candidate=evaluated(job))
    if isinstance(job, CheckJob):
        notes = require_publishable(job.spec, folder=Path.cwd())
        require_functions(job.spec)
        return JobResult(notes=notes)
    return _begun(job) if isinstance(job, BeginJob) else _mirrored(job)


def evaluated(job: EvaluateJob) -> Candidate:
    """Return the result of the slot's run as a candidate, after a comparison with the current version in service.

    The candidate's files are in the store, but no record refers to them.

    Raises:
        SegueError: the candidate cannot be published or compared.
    """
    spec, start = job.spec, job.start
    run = _run_of(start)
    runlog = open_log(run).reload()
    history = read_history(runlog)
    step = "best" if spec.publish.checkpoint == "best" else None
    checkpoint = choose_checkpoint(history, run_id=run.run_id, step=step, take_quarantined=False)  # type: ignore[arg-type]
    state = _component(spec, runlog, checkpoint)
    data = weights_bytes(state, component=spec.publish.component)
    weights = put_artifact(runlog.store, spec.name, WEIGHTS, data)
    program = _program(spec, run, state)
    models = ModelsLog(runlog.store, spec.name, spec=run.store).read()
    facts: dict[str, Any] = {
        "slot": start.slot,
        "run_id": run.run_id,
        "step": checkpoint.manifest.step,
        "attempt_id": checkpoint.ref.attempt_id,
        "weights": weights,
        "program": None if program is None else put_artifact(runlog.store, spec.name, PROGRAM, program),
        "config": run.config,
        "training": _training(run, history, checkpoint),
        "registry": spec.publish.mlflow,
        "compared_with": models.in_service,
    }
    before = None if models.in_service is None else models.version(models.in_service)
    candidate = Candidate(**facts, is_promoted=False, why="")
    faults = _weight_faults(state)
    if spec.evaluation is None:
        unseen = "nothing is evaluated: retrain.toml has no [evaluation]"
        promotion = Promotion(is_promoted=not faults, why="; ".join(faults) or unseen)
    else:
        facts["comparisons"], more = _comparisons(spec, start, runlog.store, candidate, before)
        promotion = decide(spec.evaluation, facts["comparisons"], faults=[*faults, *more])
    if before is not None and before.slot > start.slot:  # The slot is a backfill of an earlier time.
        promotion = Promotion(is_promoted=False, why=f"version {models.in_service} was trained for a later slot")
    return Candidate(**facts, is_promoted=promotion.is_promoted, why=promotion.why)


def _comparisons(
    spec: RetrainSpec, start: SlotStart, store: Store, candidate: Candidate, before: Candidate | None
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Compare the candidate with the model in service. Return comparisons, and faults of the candidate's
    predictions.
    """
    assert spec.evaluation is not None
    assert spec.publish.model is not None
    data = start.window.data_of(start.window.held_back, spec.data)
    # The hashes show that these are the same files as when the slot was planned.
    frame = read_frame(checked_copies(data), types=data.columns or None, reading=data.reading)
    function, model = spec.evaluation.scores, spec.publish.model
    place = start.window.place_of_held_back
    mine, rows = _scored(function, published_model(model, candidate, store), frame, place)
    theirs, rows_before = None, 0
    if before is not None:
        theirs, rows_before = _scored(function, published_model(model, before, store), frame, place)
    comparisons = compare(
        spec.evaluation,
        frame,
        mine,
        theirs,
        seed=int(start.slot.timestamp()),
        before=before.comparisons if before is not None else (),
    )
    there = f" and those of the model in service in {rows_before:,}" if before is not None else ""
    return comparisons, (f"its predictions are nan in {rows:,} rows{there}",) if rows > rows_before else ()


def _scored(
    function: str, model: Callable[..., Any], frame: pd.DataFrame, place_of: Callable[[int], str]
) -> tuple[Scores, int]:
    """Return a model's scores, and the number of rows in which the model's predictions are nan."""
    with nan_predictions(model) as found:
        return scores_of(function, model, frame, place_of=place_of), found.rows


def _weight_faults(state: dict[str, Any]) -> tuple[str, ...]:
    names = nan_weights(state)
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    shown = ", ".join([*names[:_MOST_NAMED], *more])
    return (f"its weights are nan in {len(names)} of {len(state)} tensors: {shown}",) if names else ()


def _component(spec: RetrainSpec, runlog: RunLog, checkpoint: Checkpoint) -> dict[str, Any]:
    found = dict(plain_state(read_verified(runlog, checkpoint)))
    if spec.publish.component not in found:
        why = f"the checkpoint has no such component; it has {', '.join(found)}"
        raise PublishError(what=f"component {spec.publish.component}", why=why)
    state = found[spec.publish.component]
    if f"{spec.publish.component}.modes" in found:  # A program tracks a module under its own name.
        state = state["state"]
    if not isinstance(state, dict):
        raise PublishError(what=f"component {spec.publish.component}", why="it is not a state dict")
    # torch.compile adds a prefix to the names, but the model that loads the weights may not be compiled.
    return {str(name).replace(_COMPILED, ""): value for name, value in state.items()}


def _program(spec: RetrainSpec, run: RunSpec, state: dict[str, Any]) -> bytes | None:
    if spec.publish.example is None or spec.publish.model is None:
        return None
    example = called(import_build(spec.publish.example), name=spec.publish.example)
    if not isinstance(example, tuple):
        raise PublishError(what=spec.publish.example, why=f"it returned a {type(example).__name__}, not a tuple")
    return program_bytes(built_model(spec.publish.model, run.config, state), example)


def _training(run: RunSpec, history: History, checkpoint: Checkpoint) -> Training:
    cost = cost_report(run, history)
    verdicts = Counter(attempt.verdict.kind.value for attempt in history.attempts if attempt.verdict is not None)
    components = checkpoint.manifest.components
    hashes = {"config": run.identity()["config"]} | ({"code": components[CODE]} if CODE in components else {})
    return Training(
        segments=len(history.last_reports()),
        preemptions=cost.preemptions,
        verdicts=dict(verdicts),
        cost=cost.cost,
        currency=cost.currency,
        saved_share=cost.saved_share,
        late_seconds=late_seconds_at_end(history),
        hashes=hashes,
    )


def _begun(job: BeginJob) -> JobResult:
    """Make the weights of the start version the first checkpoint of the slot's run, if this has not happened before."""
    run, version = _run_of(job.start), job.start.start_version
    assert version is not None
    store = open_log(run).store
    candidate = ModelsLog(store, job.spec.name, spec=run.store).read().version(version)
    with tempfile.TemporaryDirectory(prefix="segue-weights-") as folder:
        file = Path(folder, f"version-{version}.safetensors")
        file.write_bytes(get_artifact(store, candidate.weights))
        with suppress(RunBegunError):  # An earlier start of the slot may have done it.
            import_weights(run, file)
    return JobResult()


def _mirrored(job: MirrorJob) -> JobResult:
    registry, place = job.spec.publish.mlflow, store_of(job.spec)
    assert registry is not None
    store = open_store(place)
    mirror(registry, ModelsLog(store, job.spec.name, spec=place).read(), store)
    return JobResult()


def _run_of(start: SlotStart) -> RunSpec:
    assert start.run is not None  # If the data of a slot was refused, the slot has no job.
    return start.run


if __name__ == "__main__":
    main()
