"""The doorway to verdicts: publish what the log says about an attempt's resume."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from segue.controller.steps import settle_verdict
from segue.records import SegmentReport, Verdict, VerdictKind
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.retry import patiently


@task(name="judge-resume", retries=0, cache_policy=NO_CACHE)
def judge_resume(spec: RunSpec, report: SegmentReport) -> Verdict | None:
    """The verdict about an attempt's resume; None when it started from step 0 or never got so far."""
    runlog = patiently(open_log(spec).reload, what="log")
    verdict = patiently(lambda: settle_verdict(runlog, report), what="verdict")
    if verdict is not None:
        loud = verdict.kind in (VerdictKind.BROKEN, VerdictKind.UNVERIFIED)
        (get_run_logger().warning if loud else get_run_logger().info)("resume %s", verdict.sentence)
    return verdict
