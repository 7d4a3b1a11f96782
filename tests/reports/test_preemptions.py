"""The ledger of preemptions: notice, last save, what was lost, and when the run trained again."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from segue.records import Capacity, Heartbeat, Notice, StopReason
from segue.reports.preemptions import notice_counts, preemptions
from tests.support.histories import START, Logbook, make_spec

NOTICE, LOST = StopReason.NOTICE, StopReason.LOST
TRAINED = {"train_steps": 20, "train_seconds": 600.0, "startup_seconds": 15.0}


def logbook() -> Logbook:
    pools = {"spot_price": 1.2, "on_demand_price": 4.0, "currency": "EUR"}
    return Logbook(make_spec(pools=pools, policy={"max_lost_in_place": 99}))


def preempted(book: Logbook, *, notice: Notice | None, commit: int | None, reached: int, lost: int) -> None:
    plan = book.plan()
    name = book.claim(plan)
    if commit is not None:
        book.commit(name, commit)
    facts = {"to_step": reached, "lost_steps": lost, "seconds": 700.0, "notice": notice}
    book.report(plan, NOTICE if notice else LOST, attempt_id=name, **TRAINED | facts)


def notice_at(seconds: float, *, kind: str = "aws", grace_seconds: float = 120.0) -> Notice:
    return Notice(kind=kind, received_at=START + timedelta(seconds=seconds), grace_seconds=grace_seconds)


def ledger(book: Logbook, *, beat: Heartbeat | None = None):
    return preemptions(book.spec, book.history, beat=beat)


def test_a_notice_shows_its_grace_period_how_much_was_used_and_that_the_last_save_was_made():
    book = logbook()
    preempted(book, notice=notice_at(690), commit=20, reached=20, lost=0)
    (one,) = ledger(book)
    assert (one.notice, one.grace_seconds, one.used_seconds, one.last_save) == ("aws", 120, 10, "made")
    assert (one.lost_steps, one.lost_cost, one.training_after_seconds) == (0, 0, None)
    assert one.row("EUR") == {
        "segment": "0",
        "pool": "spot",
        "notice": "aws, used 10 s of 2 min",
        "last save": "made",
        "lost": "nothing",
        "training again": "not yet",
    }


def test_a_missed_save_and_a_machine_lost_without_a_notice_show_steps_and_money():
    book = logbook()
    preempted(book, notice=notice_at(600), commit=10, reached=20, lost=10)
    preempted(book, notice=None, commit=None, reached=30, lost=20)
    missed, lost = ledger(book)
    # 30 s a step at 1.20 EUR an hour.
    assert (missed.last_save, missed.lost_steps, missed.lost_cost) == ("missed", 10, pytest.approx(0.1))
    assert (lost.last_save, lost.notice, lost.lost_cost) == (None, None, pytest.approx(0.2))
    assert lost.row("EUR")["notice"] == "no notice"
    assert lost.row("EUR")["lost"] == "20 steps, 0.2000 EUR"


def test_answered_notices_and_others_are_counted_by_the_phase_in_which_they_came():
    book = logbook()
    for phase in ("step", "evaluate", "step", None):
        preempted(book, notice=notice_at(690).model_copy(update={"phase": phase}), commit=20, reached=20, lost=0)
    assert notice_counts(ledger(book)) == "4 answered (1 in an unknown phase, 1 in evaluate, 2 in step)"
    plan = book.plan()
    name, notice = book.claim(plan), notice_at(690).model_copy(update={"phase": "build"})
    book.report(plan, LOST, attempt_id=name, **TRAINED | {"to_step": 20, "seconds": 700.0, "notice": notice})
    assert notice_counts(ledger(book)).endswith("; 1 not answered (1 in build)")
    assert [one.warning for one in ledger(book)][1::3] == [
        "aws in evaluate, used 10 s of 2 min",
        "aws in build, not answered",
    ]
    assert notice_counts([]) is None


def test_an_attempt_without_a_new_step_had_nothing_to_save():
    book = logbook()
    preempted(book, notice=notice_at(5), commit=None, reached=0, lost=0)
    assert ledger(book)[0].last_save == "nothing to save"


def test_an_orphan_has_no_known_grace_period():
    book = logbook()
    preempted(book, notice=notice_at(690, kind="orphaned", grace_seconds=3600), commit=20, reached=20, lost=0)
    assert ledger(book)[0].warning == "orphaned, used 10 s"


def test_the_time_without_training_lasts_until_the_first_new_step_of_a_later_attempt():
    book = logbook()
    preempted(book, notice=None, commit=20, reached=20, lost=0)
    book.seconds = 730
    plan = book.plan()
    name = book.claim(plan)
    assert ledger(book)[0].training_after_seconds is None
    book.report(plan, LOST, attempt_id=name, **TRAINED)
    assert ledger(book)[0].training_after_seconds == 730 + 15 - 700


def test_the_heartbeat_shows_that_the_live_attempt_trains_again():
    book = logbook()
    preempted(book, notice=None, commit=20, reached=20, lost=0)
    book.seconds = 730
    name = book.claim(book.plan())
    facts = {"attempt_id": name, "counter": 9, "phase": "training", "trainer_pid": 1, "step_seconds": 5.0}
    beat = Heartbeat(step=24, beat_at=START + timedelta(seconds=770), **facts)
    assert ledger(book, beat=beat)[0].training_after_seconds == 770 - 4 * 5 - 700
    starting = beat.model_copy(update={"step": 20})
    assert ledger(book, beat=starting)[0].training_after_seconds is None


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.HUNG, StopReason.BOUND, StopReason.FENCED])
def test_ends_that_no_provider_caused_are_not_in_the_ledger(reason):
    book = logbook()
    book.not_started()
    book.attempt(reason)
    assert ledger(book) == []


def test_a_lost_on_demand_machine_is_in_the_ledger_under_its_pool():
    book = logbook()
    book.attempt(LOST, Capacity.ON_DEMAND)
    assert [one.pool for one in ledger(book)] == [book.history.decisions[-1].plan.deployment]


def test_the_facts_are_plain_json():
    book = logbook()
    preempted(book, notice=notice_at(690), commit=20, reached=20, lost=0)
    (facts,) = json.loads(json.dumps([one.facts() for one in ledger(book)]))
    assert (facts["segment"], facts["grace_seconds"], facts["last_save"]) == (0, 120.0, "made")
