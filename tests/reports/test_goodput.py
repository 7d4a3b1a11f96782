"""Every paid second has a cause, and the causes add up to what was paid."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from matplotlib.figure import Figure

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.policy.spending import Charge, charges_of, month_of
from segue.records import Capacity, StopReason, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.goodput import goodput_of, goodput_of_attempt
from segue.reports.goodput_plot import draw_causes
from segue.reports.spending_report import RunCharges, by_cause, by_pool, by_run
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
    facts = {"to_step": to, "lost_steps": lost, "seconds": seconds, "train_seconds": 1e6} | fields
    book.report(plan, StopReason.LOST if lost else StopReason.NOTICE, attempt_id=name, **facts)


def seconds_of(book: Logbook, **more) -> dict[str, float]:
    return dict(goodput_of(book.history, charges_of(book.spec, book.history), **more).seconds)


def test_the_causes_of_an_attempt_add_up_to_its_seconds():
    book = Logbook(make_spec())
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    found = goodput_of(book.history, charges_of(book.spec, book.history))
    # 49 steps took 98 s: 2 s each. The first took 3 s, of which 2 are the step.
    assert found.seconds == pytest.approx(
        {
            "training": 98 + 2 - 14,
            "lost work": 14,
            "build": 4,
            "setup and restore": 6,
            "first step": 1,
            "saves": 5,
            "evaluation": 2,
            "end": 1,
        }
    )
    assert found.total_seconds == pytest.approx(119)
    assert found.share == pytest.approx(86 / 119)
    assert found.sentence == (
        "72% of 119 s in steps that count; lost work 14 s, setup and restore 6 s, saves 5 s, build 4 s, "
        "evaluation 2 s, first step 1 s, end 1 s"
    )


def resumed(book: Logbook, *, rows: int, to: int, **fields) -> dict[str, float]:
    """The seconds of a second attempt, which resumes and compares `rows` steps."""
    attempt(book, to=20, phase_seconds=PHASES)
    book.resume(VerdictKind.EXACT, rows=rows)
    report = book.history.last_reports()[-1]
    seconds = sum(fields["phase_seconds"].values())
    made = report.model_copy(update={"to_step": to, "seconds": seconds, "train_seconds": 1e6} | fields)
    found = goodput_of_attempt(book.history, made, lost_steps=made.lost_steps)
    assert found.total_seconds == pytest.approx(seconds)
    assert min(found.seconds.values()) >= 0
    return dict(found.seconds)


def test_compared_steps_count_as_training_for_as_long_as_the_other_steps_take():
    phases = {"restore": 5.0, "replay": 30.0, "step": 24.0}
    assert resumed(Logbook(make_spec()), rows=0, to=40, phase_seconds=phases)["replay"] == 30
    found = resumed(Logbook(make_spec()), rows=8, to=40, phase_seconds=phases)
    assert found == pytest.approx({"training": 24 + 8 * 2, "replay": 30 - 8 * 2, "setup and restore": 5})


def test_lost_steps_of_the_replay_are_lost_work():
    phases = {"restore": 5.0, "replay": 30.0, "step": 6.0}
    found = resumed(Logbook(make_spec()), rows=8, to=31, lost_steps=11, phase_seconds=phases)
    assert found == pytest.approx({"lost work": 11 * 2, "replay": 30 - 8 * 2, "setup and restore": 5})


def test_the_time_in_a_step_that_never_ended_is_lost_work():
    hung = Logbook(make_spec())
    attempt(hung, to=50, train_seconds=49.0, phase_seconds={"first step": 1.0, "step": 649.0})
    assert seconds_of(hung) == pytest.approx({"training": 50, "lost work": 600})


def test_steps_that_a_later_attempt_makes_again_are_lost_work():
    book = Logbook(make_spec())
    attempt(book, to=20, phase_seconds={"first step": 2.0, "step": 38.0})
    attempt(book, to=50, phase_seconds={"first step": 2.0, "step": 58.0})
    book.quarantine(book.history.newest.ref)
    attempt(book, to=60, phase_seconds={"first step": 2.0, "step": 78.0})
    assert seconds_of(book) == pytest.approx({"training": 40 + 80, "lost work": 60})


def test_an_attempt_that_died_is_scaled_to_the_seconds_that_are_charged():
    book = Logbook(make_spec())
    attempt(book, to=50, seconds=100.0, phase_seconds={"build": 100.0, "first step": 2.0, "step": 98.0})
    found = goodput_of(book.history, charges_of(book.spec, book.history))
    assert found.total_seconds == pytest.approx(100)
    assert found.share == pytest.approx(0.5)


def test_an_attempt_without_a_machine_of_an_older_version_or_alive():
    book = Logbook(make_spec())
    book.not_started()
    standbys = {"standby_seconds": 100.0}
    assert seconds_of(book, **standbys) == {}
    attempt(book, to=50, lost=10, seconds=100.0, train_steps=40, train_seconds=80.0)
    usual = 80 / 49
    assert seconds_of(book) == pytest.approx({"start": 20, "training": 80 - 10 * usual, "lost work": 10 * usual})
    book.claim(book.plan())
    with_live = goodput_of(book.history, charges_of(book.spec, book.history, live_seconds=500.0), **standbys)
    assert with_live.total_seconds == pytest.approx(200)


def test_money_by_cause_adds_up_to_all_charges():
    pools = {"spot_price": 3.6, "on_demand_price": 36.0, "on_demand_transfer_price_per_gb": 1.0}
    book = Logbook(make_spec(pools=pools))
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    plan = book.plan(Capacity.ON_DEMAND, deployment=book.spec.pools.on_demand)
    name = book.claim(plan)
    book.commit(name, 80, size_bytes=2 * 10**9)
    book.report(
        plan, StopReason.BOUND, attempt_id=name, to_step=80, seconds=119.0, train_seconds=1e6, phase_seconds=PHASES
    )
    charges = charges_of(book.spec, book.history)
    assert sum(charge.cost for charge in charges) == pytest.approx(119 * 0.001 + 119 * 0.01 + 2.0)
    standby = Charge(Capacity.SPOT, book.now, 60.0, 3.6, use="standbys", deployment="segment/spot")
    run = RunCharges("r", "finished", "EUR", [*charges, standby], book.history)
    rows = by_cause([run])
    costs = {row.names["cause"]: row.cost for row in rows}
    assert sum(costs.values()) == pytest.approx(119 * 0.011 + 2.0 + 0.06)
    assert costs["lost work"] == pytest.approx(14 * 0.001)
    assert (costs["data"], costs["standbys"]) == (2.0, pytest.approx(0.06))
    assert next(iter(costs)) == "data"
    assert "goodput" not in rows[0].row() | rows[0].facts()
    # 43 of 50 steps and 30 of 30 steps count; the standby trained nothing, and data takes no time.
    shares = {row.names["pool"]: row.goodput for row in by_pool([run])}
    kept = 86 / 119, (98 + 98 / 29 + 0 * 3) / 119
    assert shares == {"segment/on-demand": pytest.approx(kept[1], abs=0.01), "segment/spot": pytest.approx(86 / 179)}
    assert list(shares) == ["segment/on-demand", "segment/spot"]
    (row,) = by_run([run])
    assert row.facts()["goodput"] == pytest.approx((86 + shares["segment/on-demand"] * 119) / 298, abs=1e-4)
    assert row.row()["goodput"] == f"{row.goodput:.0%}"


def test_the_causes_of_a_month_add_up_to_the_cost_of_the_month():
    book = Logbook(make_spec(pools={"spot_price": 3600.0, "on_demand_price": 36000.0}))
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    charges = charges_of(book.spec, book.history)
    whole = RunCharges("r", "", "EUR", charges, book.history)
    january = month_of(book.now, book.spec.budget.zone)
    cut = replace(january, ends_at=charges[0].began_at + timedelta(seconds=40))
    for month, cost in ((january, 119.0), (cut, 40.0)):
        part = whole.within(month)
        assert sum(charge.cost for charge in part.charges) == pytest.approx(cost)
        assert sum(row.cost for row in by_cause([part])) == pytest.approx(cost)


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
    found = goodput_of(history, charges_of(spec, history))
    assert found.total_seconds == pytest.approx(report.seconds, rel=0.01)
    assert found.seconds["training"] >= 299 * 0.01
    assert {"saves", "setup and restore", "build", "evaluation"} <= found.seconds.keys()


def test_the_plot_has_a_bar_for_each_attempt_as_high_as_its_seconds():
    book = Logbook(make_spec())
    attempt(book, to=50, lost=7, phase_seconds=PHASES)
    attempt(book, to=80, phase_seconds=PHASES | {"end": 0.2, "save": 900.0})
    axes = Figure().subplots()
    draw_causes(axes, book.history)
    assert axes.get_ylabel() == "paid minutes"
    heights = [sum(bars[at].get_height() for bars in axes.containers) * 60 for at in (0, 1)]
    assert heights == pytest.approx([119, 119 - 1 + 0.2 - 5 + 900])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert (names[0], names[-1]) == ("training", "other")
    assert {"lost work", "saves"} <= set(names)
    assert "end" not in names  # It is less than a hundredth.


def test_the_plot_of_a_run_without_an_attempt_is_empty():
    axes = Figure().subplots()
    draw_causes(axes, Logbook(make_spec()).history)
    assert (len(axes.patches), axes.get_legend()) == (0, None)
