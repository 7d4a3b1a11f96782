"""Views of runs whose metrics tests export."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from segue.records import Heartbeat, Notice, StopReason, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.page import RunView
from segue.reports.summary import live_of
from tests.support.histories import START, Logbook, make_spec

STORE = "s3://bucket/models"


def eventful_view(run_id: str = "nightly", *, resume: VerdictKind = VerdictKind.BROKEN, **fields: Any) -> RunView:
    """A run on spot with a notice, a lost machine, a resume and an attempt that trains at step 57."""
    policy = {"step_seconds": 2, "max_lost_in_place": 99}
    common = {"deadline_in": 3600, "policy": policy, "store": {"url": STORE}, "pools": {"currency": "EUR"}}
    book = Logbook(make_spec(run_id=run_id, **common | fields))
    plan = book.plan()
    name = book.claim(plan)
    kept = book.commit(name, 40)
    notice = Notice(kind="aws", received_at=START + timedelta(seconds=90), grace_seconds=120)
    facts = {"to_step": 45, "lost_steps": 5, "seconds": 100.0, "train_seconds": 90.0, "train_steps": 45}
    book.report(plan, StopReason.NOTICE, attempt_id=name, notice=notice, checkpoint=kept, **facts)
    book.seconds = 200.0
    book.resume(resume)
    book.attempt(StopReason.LOST, commit=50)
    book.seconds = 300.0
    name = book.claim(book.plan())
    beat = Heartbeat(
        attempt_id=name,
        counter=9,
        phase="training",
        step=57,
        step_seconds=2.0,
        last_commit_step=50,
        trainer_pid=1,
        beat_at=START + timedelta(seconds=320),
    )
    book.seconds = 325.0
    cost = cost_report(book.spec, book.history, live=live_of(beat, book.history))
    return RunView(book.spec, book.history, cost, book.now, beat=beat)


def with_trouble(view: RunView) -> RunView:
    """The same view a minute later, while the store cannot be read and nothing guards the parent."""
    later = view.at(view.now + timedelta(seconds=60), store_trouble="the bucket does not answer")
    return replace(later, unguarded="recovery is silent")
