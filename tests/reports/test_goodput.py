"""Every paid second has a cause, and the causes add up to what was paid."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.policy.spending import Charge, charges_of, month_of
from segue.records import Capacity, StopReason, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.goodput import charges_by_cause, goodput_of, goodput_of_attempt
from segue.reports.spending_report import RunCharges, by_cause
from segue.runlog.history import read_history
from tests.support.histories import Logbook, make_spec

PHASES = {"build": 4.0, "restore": 6.0, "first step": 3.0, "step": 98.0, "save": 5.0, "evaluate": 2.0, "end": 1.0}


def attempt(book: Logbook, *, to: int, lost: int = 0, capacity: Capacity = Capacity.SPOT, **fields) -> None:
    plan = book.plan(capacity)
    start = plan.parent.step if plan.parent else 0
    name = book.claim(plan)
    if to - lost > start:
        book.commit(name, to - lost)
    seconds = sum(fields.get("phase_seconds", {}).values())
    facts = {"to_step": to, "lost_steps": lost, "seconds": seconds} | fields
    book.report(plan, StopReason.LOST if lost else StopReason.NOTICE, attempt_id=name, **facts)


def test_the_causes_of_an_attempt_add_up_to_its_seconds():
    book = Logbook(make_spec())
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    found = goodput_of(book.history)
    # 49 steps took 98 s: 2 s each. The first took 3 s, of which 2 are the step.
    assert found.seconds == {
        "training": 98 + 2 - 14,
        "lost work": 14,
        "build": 4,
        "setup and restore": 6,
        "first step": 1,
        "saves": 5,
        "evaluation": 2,
        "end": 1,
    }
    assert found.total_seconds == sum(PHASES.values()) == 119
    assert found.share == pytest.approx(86 / 119)
    assert found.sentence == (
        "72% of 119 s in steps that count; lost work 14 s, setup and restore 6 s, saves 5 s, build 4 s, "
        "evaluation 2 s, first step 1 s, end 1 s"
    )


def test_replayed_steps_count_as_training_for_as_long_as_the_other_steps_take():
    book = Logbook(make_spec())
    attempt(book, to=20, phase_seconds=PHASES)
    plan = book.plan()
    name = book.claim(plan)
    book.verdict(VerdictKind.EXACT)  # It has compared no rows, so nothing of the replay is training.
    phases = {"restore": 5.0, "replay": 30.0, "step": 20.0}
    book.report(plan, StopReason.NOTICE, attempt_id=name, to_step=40, seconds=55.0, phase_seconds=phases)
    without = goodput_of_attempt(book.history, book.history.last_reports()[-1])
    assert without.seconds["replay"] == 30

    resumed = Logbook(make_spec())
    attempt(resumed, to=20, phase_seconds=PHASES)
    resumed.resume(VerdictKind.EXACT, rows=8)
    report = resumed.history.last_reports()[-1]
    report = report.model_copy(update={"to_step": 40, "seconds": 55.0, "phase_seconds": phases})
    found = goodput_of_attempt(resumed.history, report)
    usual = 20.0 / (20 - 8)
    assert found.seconds["training"] == pytest.approx(20 + 8 * usual)
    assert found.seconds["replay"] == pytest.approx(30 - 8 * usual)
    assert found.total_seconds == pytest.approx(55)


def test_an_attempt_without_a_machine_or_of_an_older_version():
    book = Logbook(make_spec())
    book.not_started()
    assert goodput_of(book.history).share is None
    assert goodput_of(book.history).sentence == ""
    attempt(book, to=50, lost=10, seconds=100.0, train_steps=40, train_seconds=80.0)
    assert goodput_of(book.history).seconds == {"start": 20, "training": 60, "lost work": 20}
    assert goodput_of(book.history, standby_seconds=100).share == pytest.approx(60 / 200)


def test_money_by_cause_adds_up_to_all_charges():
    pools = {"spot_price": 3.6, "on_demand_price": 36.0, "on_demand_transfer_price_per_gb": 1.0}
    book = Logbook(make_spec(pools=pools))
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    plan = book.plan(Capacity.ON_DEMAND, deployment=book.spec.pools.on_demand)
    name = book.claim(plan)
    book.commit(name, 80, size_bytes=2 * 10**9)
    book.report(plan, StopReason.BOUND, attempt_id=name, to_step=80, seconds=119.0, phase_seconds=PHASES)
    charges = charges_of(book.spec, book.history)
    assert sum(charge.cost for charge in charges) == pytest.approx(119 * 0.001 + 119 * 0.01 + 2.0)
    standby = Charge(Capacity.SPOT, book.now, 60.0, 3.6, use="standbys")
    rows = by_cause((cause, charge, "EUR") for cause, charge in charges_by_cause(book.history, [*charges, standby]))
    costs = {row.names["cause"]: row.cost for row in rows}
    assert sum(costs.values()) == pytest.approx(119 * 0.011 + 2.0 + 0.06)
    assert costs["lost work"] == pytest.approx(14 * 0.001)
    assert (costs["data"], costs["standbys"]) == (2.0, pytest.approx(0.06))
    assert next(iter(costs)) == "data"
    month = month_of(book.now, book.spec.budget.zone)
    found = RunCharges("r", "", "EUR", charges, charges_by_cause(book.history, charges)).within(month)
    assert sum(charge.cost for _, charge in found.causes) == pytest.approx(sum(each.cost for each in found.charges))


def test_the_report_of_a_run_names_its_goodput():
    book = Logbook(make_spec())
    attempt(book, to=50, lost=7, phase_seconds=PHASES, train_steps=49, train_seconds=105.0)
    report = cost_report(book.spec, book.history, standbys={"segment/spot": 81.0})
    assert report.rows()["goodput"].startswith("43% of 3.3 min in steps that count; standbys 81 s, lost work 14 s")
    assert report.numbers()["goodput"] == pytest.approx(0.43)
    assert sum(report.numbers()["seconds_by_cause"].values()) == pytest.approx(200)
    assert "goodput" not in cost_report(book.spec, Logbook(make_spec()).history).rows()


@pytest.mark.matrix
def test_a_real_attempt_explains_its_seconds(fork_server, make_spec):
    config = {"pause_seconds": 0.01}
    spec = make_spec(run_id="explained", steps=300, config=config, checkpoints={"every_steps": 50})
    runlog = open_run(spec, clock=SystemClock())
    fork_server.run_to_the_end(runlog, spec)
    history = read_history(runlog)
    (report,) = history.last_reports()
    assert sum(report.phase_seconds.values()) == pytest.approx(report.seconds, rel=0.01)
    found = goodput_of(history)
    assert found.total_seconds == pytest.approx(report.seconds, rel=0.01)
    assert found.seconds["training"] >= 299 * 0.01
    assert {"saves", "setup and restore", "build", "evaluation"} <= found.seconds.keys()
