"""The tasks that judge a resume, record and publish a scheduled verification, and remove its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run, task_run

from segue.controller.attempt_ends import settle_verdict
from segue.markup import inline
from segue.notices.disturbance import DisturbanceKind
from segue.prefect.api import SILENCE, quick_client, wait_for_api
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.ui.announcements import Announcer
from segue.prefect.ui.artifacts import LiveArtifact, artifact_key
from segue.records import SegmentReport, Verdict, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.base import StoreReadError, StoreWriteError
from segue.verification.disturber import Disturber
from segue.verification.runs import DrillRuns
from segue.verification.verification_outcome import Found, judge_verification
from segue.verification.verification_page import event_of, headline, verifications_page
from segue.verification.verifications import Verification, VerificationsLog, tidy

_API_SECONDS = 900.0
_RETRY_SECONDS = 2.0


@task(name="judge-resume", retries=0, cache_policy=NO_CACHE)
def judge_resume(spec: RunSpec, report: SegmentReport) -> Verdict | None:
    """Judge an attempt's resume. If the attempt started from step 0 or never claimed the run, return None."""
    runlog = as_parent(open_log(spec).reload, what="log")
    verdict = as_parent(lambda: settle_verdict(runlog, report), what="verdict")
    if verdict is not None:
        is_warning = verdict.kind in (VerdictKind.BROKEN, VerdictKind.UNVERIFIED)
        level = logging.WARNING if is_warning else logging.INFO
        get_run_logger().log(level, "resume judged verdict=%s", verdict.sentence)
    return verdict


@task(name="judge-verification", retries=0, cache_policy=NO_CACHE)
def record_verification(
    runs: DrillRuns, kinds: Sequence[DisturbanceKind], *, said: str | None = None
) -> tuple[Verification, ...]:
    """Compare the two runs, and record the outcome. Return all verifications up to this one."""
    found = as_parent(lambda: _found(runs, said), what="logs of the two runs")
    outcome = judge_verification(runs, found, kinds=kinds)
    get_run_logger().info("verification judged outcome=%s reason=%s", outcome.outcome, outcome.reason)
    log = VerificationsLog(open_store(runs.spec.store), runs.spec.run_id, spec=runs.spec.store, clock=parent_clock())
    return as_parent(lambda: log.add(outcome), what="record of the verification")


def _found(runs: DrillRuns, said: str | None) -> Found:
    undisturbed, runlog = open_log(runs.undisturbed), open_log(runs.disturbed)
    disturbed = read_history(runlog)
    hits = Disturber(runlog, runs.disturbed, (), clock=parent_clock()).hits(disturbed)
    return Found(read_history(undisturbed), disturbed, hits, said)


@task(name="publish-verification", retries=0, cache_policy=NO_CACHE)
def publish_verification(spec: RunSpec, history: Sequence[Verification]) -> None:
    """Send one event about the newest verification, and publish the page `segue-<run>-verify`."""
    clock, logger = parent_clock(), get_run_logger()
    store = open_store(spec.store)
    log = VerificationsLog(store, spec.run_id, spec=spec.store)
    as_parent(log.read, what="log of the verifications")
    run_id, task_id = (UUID(str(known)) if known else None for known in (flow_run.id, task_run.id))
    announcer = Announcer(spec.run_id, log_id=log.log_id, flow_run_id=run_id, logger=logger)
    key = artifact_key(f"{spec.run_id}-verify")
    artifact = LiveArtifact(key, kind="markdown", flow_run_id=run_id, task_run_id=task_id)
    give_up_at = clock.monotonic() + _API_SECONDS
    is_published = False
    while not is_published:
        wait_for_api(limit_seconds=max(give_up_at - clock.monotonic(), 0.0), clock=clock)
        now = clock.now()
        try:
            with quick_client() as client:
                announcer.announce(client, [event_of(history, store=store.url, now=now)], now=now)
                page = verifications_page(history, store=store.url, now=now)
                artifact.write(client, page, description=inline(headline(history, now=now)))
            is_published = True
        except SILENCE as error:
            if clock.monotonic() > give_up_at:
                raise
            logger.warning("verification not published, trying again reason=%s", type(error).__name__)
            clock.sleep(_RETRY_SECONDS)


@task(name="tidy-verification", retries=0, cache_policy=NO_CACHE)
def tidy_verification(spec: RunSpec, history: Sequence[Verification]) -> None:
    """Remove the checkpoints of a passed verification. If this fails, the next verification removes them."""
    try:
        tidy(open_store(spec.store), history, history[-1], spec=spec.store)
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("objects of the verification could not be removed reason=%s", error)
