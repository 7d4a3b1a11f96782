"""The tasks of scheduled retraining: they choose and check a slot's window, pass on the weights of a version, evaluate
the candidate, and publish pages. They also begin slots for new or drifted data."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client

from segue.errors import ModelChangedError, OrchestratorError
from segue.prefect.api import read_deployment
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.slots.slot_starts import SlotStarter
from segue.prefect.ui.artifacts import artifact_key
from segue.retraining.gate.docs import store_docs
from segue.retraining.gate.record import GateResult
from segue.retraining.gate.window_check import check_window
from segue.retraining.history import Models
from segue.retraining.model_record import SlotStart
from segue.retraining.models import ModelsLog
from segue.retraining.pages import card, gate_page, history_page
from segue.retraining.promotion import asked
from segue.retraining.slots import run_id_of, stamp_of, store_of
from segue.retraining.spec import RetrainSpec, Window
from segue.retraining.triggers.trigger_look import look, unstarted
from segue.retraining.versions.candidate_jobs import BeginJob, CheckJob, EvaluateJob, MirrorJob, run_job
from segue.retraining.versions.version_files import CARD, put_artifact
from segue.retraining.window import window_of
from segue.stores import open_store

_MOST_COMPARISONS = 10


@task(name="check-functions", retries=0, cache_policy=NO_CACHE)
def check_functions(spec: RetrainSpec) -> None:
    """Check that the spec's functions and program can publish and evaluate the model that the slot will train."""
    logger = get_run_logger()
    done = run_job(CheckJob(spec=spec), what="check of the functions in retrain.toml", on_line=logger.info)
    for note in done.notes:
        logger.warning("%s", note)


@task(name="choose-window", retries=0, cache_policy=NO_CACHE)
def choose_window(spec: RetrainSpec, slot: datetime) -> tuple[Window, dict[str, Path]]:
    """Return the files of a slot with their hashes and row counts, and the local path of each file."""
    window, local = window_of(spec, slot)
    log = get_run_logger()
    for missing in window.missing:
        log.warning("no files found period=%s pattern=%s", missing.period, missing.pattern)
    rows = sum(file.rows or 0 for file in window.files)
    log.info("window chosen files=%d rows=%d held_back=%d", len(window.files), rows, len(window.held_back))
    return window, local


@task(name="check-data", retries=0, cache_policy=NO_CACHE)
def check_data(
    spec: RetrainSpec,
    slot: datetime,
    window: Window,
    local: Mapping[str, Path],
    *,
    folder: Path,
    before: SlotStart | None,
) -> tuple[GateResult, str]:
    """Evaluate the expectations of a slot's data. Return the result, and the Data Docs' prefix in the store.

    `folder` contains retrain.toml and the suite.
    """
    store = open_store(store_of(spec))
    known = (before.window, before.gate) if before is not None else None
    with tempfile.TemporaryDirectory(prefix="segue-docs-") as temporary:
        docs = Path(temporary, "docs")
        gate = check_window(spec, window, local, slot=slot, folder=folder, before=known, docs=docs)
        place = as_parent(lambda: store_docs(store, spec.name, stamp_of(slot), docs), what="Data Docs")
    for finding in gate.findings:
        get_run_logger().warning("expectation not met: %s", finding.sentence)
    return gate, place


@task(name="publish-data-check", retries=0, cache_policy=NO_CACHE)
def publish_data_check(spec: RetrainSpec, start: SlotStart) -> None:
    """Publish the result of a slot's data check as the artifact `segue-model-NAME-data`."""
    text = gate_page(start, name=spec.name, zone=spec.zone, docs=start.docs)
    key = artifact_key(f"model-{spec.name}-data")
    create_markdown_artifact(text, key=key, description=f"Check of the data of {run_id_of(spec, start.slot)}")


@task(name="begin-with-version", retries=0, cache_policy=NO_CACHE)
def begin_with_version(spec: RetrainSpec, start: SlotStart) -> None:
    """Use the weights of the version in service as the first checkpoint of the slot's run."""
    what = f"begin with version {start.start_version}"
    run_job(BeginJob(spec=spec, start=start), what=what, on_line=get_run_logger().info)


@task(name="evaluate-candidate", retries=0, cache_policy=NO_CACHE)
def evaluate_candidate(spec: RetrainSpec, start: SlotStart) -> Models:
    """Publish the candidate that the slot's run trained, and promote it if it is better than the version in service.

    If promotions need a person's approval, a better candidate waits for the approval. segue writes the promotion or the
    wait as one record. If another version has come into service since the comparison, segue compares the candidate
    again.
    """
    place, logger = store_of(spec), get_run_logger()
    log = ModelsLog(open_store(place), spec.name, spec=place)
    known = as_parent(log.read, what="log of the model")
    if known.slots[start.slot].version is not None:
        return known  # An earlier start of the slot published it, and died.
    what = f"evaluation of {run_id_of(spec, start.slot)}"
    for is_last in (*[False] * (_MOST_COMPARISONS - 1), True):
        candidate = run_job(EvaluateJob(spec=spec, start=start), what=what, on_line=logger.info).candidate
        assert candidate is not None
        candidate = asked(candidate, spec, as_parent(log.read, what="log of the model"), now=parent_clock().now())
        try:
            models = as_parent(lambda found=candidate: log.add(found), what="candidate")  # type: ignore[misc]
        except ModelChangedError as error:
            if is_last:
                raise
            logger.info("candidate not recorded, evaluating it again reason=%s", error)
            continue
        logger.info(
            "candidate recorded promoted=%s decide_by=%s reason=%s",
            candidate.is_promoted,
            candidate.decide_by,
            candidate.why,
        )
        break
    return models


@task(name="publish-model", retries=0, cache_policy=NO_CACHE)
def publish_model(spec: RetrainSpec, version: int | None = None) -> None:
    """Publish the history of a model, as an artifact and as a file in the store.

    If `version` is given, also publish the card of this version.
    """
    place = store_of(spec)
    store = open_store(place)
    models = ModelsLog(store, spec.name, spec=place).read()
    if version is not None:
        text, folder = card(models, version, zone=spec.zone), models.version(version).weights.key.split("/")[1]
        put_artifact(store, spec.name, CARD, text.encode(), folder=folder)
        key = artifact_key(f"model-{spec.name}-card")
        create_markdown_artifact(text, key=key, description=f"Card of {spec.name}, version {version}")
    key = artifact_key(f"model-{spec.name}")
    create_markdown_artifact(history_page(models, zone=spec.zone), key=key, description=f"History of {spec.name}")


@task(name="mirror-registry", retries=0, cache_policy=NO_CACHE)
def mirror_registry(spec: RetrainSpec) -> None:
    """Register the model's versions in the MLflow registry of the spec, and set its alias to the version in service.

    If the task fails, the task of the next slot also registers the missing versions.
    """
    run_job(MirrorJob(spec=spec), what="mirror of the registry", on_line=get_run_logger().info)


@task(name="look-for-triggers", retries=0, cache_policy=NO_CACHE)
def look_for_triggers(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Compare the window's files and the data in service with those of earlier slots. Return one line per finding."""
    log = _log(spec)
    log.store.check()
    return look(spec, log, now=now).lines


@task(name="start-triggered", retries=0, cache_policy=NO_CACHE)
def start_triggered(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Start the flow runs of requested slots that have not begun. Return one line about each slot.

    Recovery does not see a flow run that ended before its first heartbeat. To restart such a slot, this task starts the
    slot's flow run again, at most five times. If this task crashes, the next check continues the work, because each
    start has an idempotency key.

    Raises:
        OrchestratorError: the retraining has no deployment, and the next check tries again; or the flow run of a slot
            ended five times, and the slot has failed.
    """
    log = _log(spec)
    waiting = unstarted(log.read(), now=now)
    if not waiting:
        return ()
    with get_client(sync_client=True) as client:
        deployment = read_deployment(client, f"retrain/{spec.name}", fix="run `segue retrain deploy`.")
        starter = SlotStarter(client, deployment, spec, log, now=now)
        found = tuple(starter.start(trigger) for trigger in waiting)
    if starter.given_up:
        fix = "correct the cause, and start the slot: `segue retrain start --slot TIME`."
        raise OrchestratorError(what=f"{'; '.join(starter.given_up)}.", fix=fix)
    return found


def _log(spec: RetrainSpec) -> ModelsLog:
    place = store_of(spec)
    return ModelsLog(open_store(place), spec.name, spec=place)
