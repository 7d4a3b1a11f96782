"""Task of a verdict: log whether an attempt's resume continued the run."""

from __future__ import annotations

import logging

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from segue.tasks.parent_clock import as_parent

from segue.controller.steps import settle_verdict
from segue.records import SegmentReport, Verdict, VerdictKind
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="judge-resume", retries=0, cache_policy=NO_CACHE)
def judge_resume(spec: RunSpec, report: SegmentReport) -> Verdict | None:
    """The verdict about an attempt's resume; None when it started from step 0 or never claimed the run."""
    runlog = as_parent(open_log(spec).reload, what="log")
    verdict = as_parent(lambda: settle_verdict(runlog, report), what="verdict")
    if verdict is not None:
        is_warning = verdict.kind in (VerdictKind.BROKEN, VerdictKind.UNVERIFIED)
        level = logging.WARNING if is_warning else logging.INFO
        get_run_logger().log(level, "resume judged verdict=%s", verdict.sentence)
    return verdict
