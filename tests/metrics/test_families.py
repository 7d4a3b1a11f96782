"""The metrics of a run are what its log and its heartbeat say."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from segue.metrics.families import FAMILIES, RUN_LABELS, MeasuredRun
from segue.records import Capacity, StopReason, Verdict, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.goodput import CAUSES
from segue.reports.page import RunView
from segue.runlog.entries import DecisionEntry, DrillEntry
from tests.metrics.measured import STORE, eventful_view, with_trouble
from tests.support.histories import Logbook, make_spec


def metrics(view: RunView) -> dict[str, dict[tuple[str, ...], float]]:
    """The values by the labels that not all metrics have, by metric."""
    run = MeasuredRun(view)
    return {
        family.name_in_prometheus: {labels[len(RUN_LABELS) :]: value for labels, value in family.values(run).items()}
        for family in FAMILIES
    }


def metric(view: RunView, name: str) -> float | None:
    """The value of a metric without further labels; None if it has none."""
    return metrics(view)[name].get(())


def view_of(book: Logbook) -> RunView:
    return RunView(book.spec, book.history, cost_report(book.spec, book.history), book.now)


def test_a_run_on_spot_shows_each_number_with_its_unit():
    found = metrics(eventful_view())
    assert found["segue_run_state"] == {("running", "segment/spot"): 1}
    assert found["segue_resume_verdicts_total"] == {
        ("resume", "exact"): 0,
        ("resume", "equivalent"): 0,
        ("resume", "unverified"): 0,
        ("resume", "broken"): 1,
        ("rehearsal", "exact"): 0,
        ("rehearsal", "equivalent"): 0,
        ("rehearsal", "unverified"): 0,
        ("rehearsal", "broken"): 0,
    }
    assert found["segue_preemptions_total"] == {("segment/spot",): 2}
    assert found["segue_notices_total"] == {("answered",): 1, ("missed",): 0}
    assert found["segue_cost"] == {("EUR",): pytest.approx(120 / 3600)}
    assert sum(found["segue_paid_seconds"].values()) == pytest.approx(100)
    numbers = {name: values[()] for name, values in found.items() if set(values) == {()}}
    # 50 of 100 steps are committed, at 2 s and a margin of 5%; the deadline is 3275 s away.
    assert numbers.pop("segue_slack_seconds") == pytest.approx(3275 - 50 * 2 * 1.05)
    assert numbers.pop("segue_on_demand_due_seconds") < 3275 - 50 * 2 * 1.05
    assert numbers.pop("segue_late_seconds") == pytest.approx(43 * 2 * 1.05 - 3275)
    assert numbers.pop("segue_goodput_ratio") == pytest.approx(0.8, abs=0.02)
    assert 0 < numbers.pop("segue_saved_ratio") < 1
    assert numbers == {
        "segue_committed_steps": 50,
        "segue_reached_steps": 57,
        "segue_goal_steps": 100,
        "segue_step_seconds": 2,
        "segue_waited_seconds": 0,
        "segue_work_at_risk_seconds": 14,
        "segue_deadline_timestamp_seconds": 1767225600 + 3600,
        "segue_notice_answer_seconds_total": 10,
        "segue_heartbeat_age_seconds": 5,
        "segue_store_up": 1,
        "segue_recovery_up": 1,
        "segue_refreshed_timestamp_seconds": 1767225600 + 325,
    }


def test_every_metric_names_its_run_and_store():
    run = MeasuredRun(eventful_view("nightly"))
    labels = {labels[:2] for family in FAMILIES for labels in family.values(run)}
    assert labels == {("nightly", STORE)}
    assert all(len(labels) == len(family.labels) for family in FAMILIES for labels in family.values(run))


def test_names_follow_the_conventions_of_prometheus():
    names = [family.name_in_prometheus for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert [name for name in names if not name.startswith("segue_")] == []
    assert [f.name_in_prometheus for f in FAMILIES if f.is_counter != f.name_in_prometheus.endswith("_total")] == []


def test_a_new_run_has_neither_a_goodput_nor_a_slack_that_nobody_measured():
    found = metrics(view_of(Logbook(make_spec(deadline_in=3600))))
    empty = {name for name, values in found.items() if not values}
    assert {"segue_goodput_ratio", "segue_slack_seconds", "segue_step_seconds", "segue_heartbeat_age_seconds"} <= empty
    assert found["segue_run_state"] == {("deciding", ""): 1}
    assert found["segue_preemptions_total"] == {("segment/spot",): 0}


def test_a_run_without_a_deadline_has_no_metric_of_a_deadline():
    found = metrics(eventful_view(deadline_in=None))
    names = ("slack", "on_demand_due", "late", "deadline_timestamp")
    assert [found[f"segue_{name}_seconds"] for name in names] == [{}, {}, {}, {}]


def test_a_run_on_on_demand_no_longer_has_a_time_until_on_demand_is_due():
    book = Logbook(make_spec(deadline_in=3600, policy={"step_seconds": 2}))
    book.plan(Capacity.ON_DEMAND)
    found = view_of(book)
    assert metric(found, "segue_on_demand_due_seconds") is None
    assert metric(found, "segue_slack_seconds") is not None


def test_a_finished_run_keeps_how_late_it_was_and_has_no_slack():
    book = Logbook(make_spec(deadline_in=60, policy={"step_seconds": 2}))
    book.seconds = 90
    book.attempt(StopReason.FINISHED, commit=100)
    book.decide()
    book.seconds = 5000
    view = view_of(book)
    assert metrics(view)["segue_run_state"] == {("finished", ""): 1}
    assert (metric(view, "segue_late_seconds"), metric(view, "segue_slack_seconds")) == (30, None)
    # The alert about missing signs of life must not fire after the end.
    assert metric(view, "segue_refreshed_timestamp_seconds") is None
    assert metric(view, "segue_heartbeat_age_seconds") is None


def test_a_run_that_a_person_stopped_is_not_late():
    book = Logbook(make_spec(deadline_in=60, policy={"step_seconds": 2}))
    book.write(DecisionEntry, plan=None, action="stopped", reason="stopped by hand")
    book.seconds = 5000
    assert book.history.is_over
    assert metric(view_of(book), "segue_late_seconds") is None


def test_a_preemption_counts_once_its_stop_reason_is_final():
    book = Logbook(make_spec())
    book.attempt(StopReason.LOST)
    assert metrics(view_of(book))["segue_preemptions_total"] == {("segment/spot",): 0}
    plan = book.plan()
    # Until the next claim, the report of the attempt itself may still replace this one.
    assert metrics(view_of(book))["segue_preemptions_total"] == {("segment/spot",): 0}
    book.claim(plan)
    assert metrics(view_of(book))["segue_preemptions_total"] == {("segment/spot",): 1}


def test_a_broken_rehearsal_counts_apart_from_the_resumes():
    book = Logbook(make_spec())
    kept = book.commit(book.claim(book.plan()), 10)
    book.write(DrillEntry, checkpoint=kept, verdict=Verdict(kind=VerdictKind.BROKEN), seconds=3.0)
    found = metrics(view_of(book))["segue_resume_verdicts_total"]
    assert {labels: count for labels, count in found.items() if count} == {("rehearsal", "broken"): 1}


def test_work_at_risk_counts_from_the_newest_commit_that_is_known():
    view = eventful_view()
    later = view.beat.model_copy(update={"last_commit_step": 55})
    assert metric(replace(view, beat=later), "segue_work_at_risk_seconds") == 4
    at_start = view.beat.model_copy(update={"step_seconds": None})
    assert metric(replace(view, beat=at_start), "segue_work_at_risk_seconds") is None


def test_a_view_of_a_store_that_does_not_answer_still_gets_older():
    view = eventful_view()
    later = with_trouble(view)
    assert (metric(later, "segue_store_up"), metric(later, "segue_recovery_up")) == (0, 0)
    assert metric(later, "segue_heartbeat_age_seconds") == 65
    assert metric(later, "segue_slack_seconds") == pytest.approx(metric(view, "segue_slack_seconds") - 60)
    assert later.now - view.now == timedelta(seconds=60)


def test_the_number_of_series_of_a_run_is_bounded_whatever_happens_to_it():
    book = Logbook(make_spec(policy={"step_seconds": 2, "max_lost_in_place": 999}))
    for number in range(1, 60):
        book.attempt(StopReason.LOST, commit=number, to_step=number, seconds=10.0)
        book.verdict(list(VerdictKind)[number % 4])
    series = sum(map(len, metrics(view_of(book)).values()))
    assert series <= len(FAMILIES) + len(CAUSES) + 2 * len(VerdictKind) + len(book.spec.pools.spot) + 2
