"""What an attempt shows of its machine: only what the run itself has proven counts against the machine."""

from __future__ import annotations

import math

import pytest

from segue.policy.machines.machine_evidence import seen_machines
from segue.records import Anomaly, Machine, MachineCheck, Skip, SlowRank, StopReason, VerdictKind
from segue.runlog.entries import MachineEntry, OpenEntry
from tests.support.histories import Logbook, make_spec

BAD, GOOD = Machine(kind="slurm", name="bad", devices=("GPU-1",)), Machine(kind="slurm", name="good")
NOT_FINITE = {"kind": "non_finite", "channel": "loss", "value": math.nan}
BATCH = Skip(samples_seen=24, sample_count=4)


def ends(book, machine=BAD):
    return [each.end for each in seen_machines(book.history, log_id="a") if each.machine == machine]


def committed() -> Logbook:
    book = Logbook(make_spec())
    book.attempt(StopReason.NOTICE, commit=20, machines=(GOOD,))
    return book


def test_a_machine_whose_resume_was_broken_is_blamed_once_the_same_checkpoint_resumed_well():
    book = committed()
    book.resume(VerdictKind.BROKEN, machine=BAD)
    assert ends(book) == ["ended"], "the recipe or the checkpoint may be at fault"
    book.resume(VerdictKind.EXACT, machine=GOOD)
    (seen,) = [each for each in seen_machines(book.history, log_id="a") if each.machine == BAD]
    assert (seen.end, seen.why) == (
        "wrong_numbers",
        "its resume from step 20 was broken, and a later resume from there was not",
    )
    assert ends(book, GOOD) == ["ended", "ended"]


def test_a_second_broken_resume_from_the_same_checkpoint_blames_no_machine():
    book = committed()
    book.resume(VerdictKind.BROKEN, machine=BAD)
    book.resume(VerdictKind.BROKEN, machine=GOOD)
    assert ends(book) == ["ended"]


@pytest.mark.parametrize(
    ("commit", "skips", "end"), [(30, (), "wrong_numbers"), (24, (), "ended"), (30, (BATCH,), "ended")]
)
def test_a_machine_is_blamed_for_a_number_that_was_finite_in_a_later_attempt_of_the_same_step(commit, skips, end):
    book = committed()
    plan = book.plan()
    anomaly = Anomaly(step=25, batch=BATCH, **NOT_FINITE)
    book.report(plan, StopReason.FAILED, attempt_id=book.claim(plan, machines=(BAD,)), anomaly=anomaly)
    again = book.plan(skips=skips)
    name = book.claim(again, machines=(GOOD,))
    book.commit(name, commit)
    book.report(again, StopReason.NOTICE, attempt_id=name)
    assert ends(book) == [end]


def test_a_hang_counts_against_a_machine_only_after_another_attempt_made_the_step():
    book = committed()
    book.attempt(StopReason.HUNG, machines=(BAD,), to_step=27)
    assert ends(book) == ["ended"]
    book.attempt(StopReason.NOTICE, machines=(GOOD,), commit=30)
    assert ends(book) == ["hung"]


def test_a_machine_that_failed_the_check_is_seen_although_nothing_was_claimed_there():
    book = committed()
    check = MachineCheck(seconds=0.1, results={"disk": "full"}, problems=("disk: full",))
    book.write(MachineEntry, segment=1, attempt=1, deployment="segment/spot", machine=BAD, machine_check=check)
    (seen,) = [each for each in seen_machines(book.history, log_id="a") if each.machine == BAD]
    assert (seen.end, seen.why, seen.pool) == ("check_failed", "disk: full", "segment/spot")


def test_the_time_of_a_step_is_compared_with_the_median_of_attempts_on_like_hardware():
    book = committed()
    for machine, seconds in ((GOOD, 10.0), (GOOD, 10.0), (BAD, 13.0)):
        book.attempt(StopReason.NOTICE, machines=(machine,), train_seconds=seconds, train_steps=100)
    seen = seen_machines(book.history, log_id="a")
    assert [each.slowness for each in seen] == [None, 1.0, 1.0, 1.3]


def fails_at_25(book: Logbook, machine: Machine) -> None:
    plan = book.plan()
    anomaly = Anomaly(step=25, batch=BATCH, **NOT_FINITE)
    book.report(plan, StopReason.FAILED, attempt_id=book.claim(plan, machines=(machine,)), anomaly=anomaly)


def passes_25(book: Logbook, machine: Machine) -> None:
    plan = book.plan()
    name = book.claim(plan, machines=(machine,))
    book.commit(name, 30)
    book.report(plan, StopReason.NOTICE, attempt_id=name)


def test_a_run_that_ended_and_was_started_again_blames_no_machine_because_a_person_may_have_changed_it():
    book = committed()
    for machine in (BAD, GOOD):
        fails_at_25(book, machine)
        book.seconds += 5
    assert book.decide().action == "failed"
    book.write(OpenEntry, spec=book.spec)
    book.seconds += 5
    passes_25(book, Machine(kind="slurm", name="third"))
    assert (ends(book), ends(book, GOOD)) == (["ended"], ["ended", "ended"])


def test_a_machine_that_became_slow_at_its_end_counts_as_slow_although_its_median_is_usual():
    book = committed()
    for machine, more in ((GOOD, {}), (GOOD, {}), (BAD, {"slowness": 1.5, "leaves_machine": True})):
        facts = {"train_seconds": 10.0, "train_steps": 100} | more
        book.attempt(StopReason.BOUND, machines=(machine,), **facts)
    assert ends(book) == ["slow"]


def slow(machine: Machine, rank: int = 3) -> dict[str, object]:
    return {
        "slow_ranks": (SlowRank(rank=rank, machine=machine, slowness=1.4),),
        "slowness": 1.3,
        "leaves_machine": True,
    }


def test_only_the_machine_of_a_slow_rank_counts_as_slow_and_it_does_not_share_the_blame():
    book = committed()
    for more in ({}, {}, slow(BAD)):
        facts = {"train_seconds": 13.0 if more else 10.0, "train_steps": 100} | more
        book.attempt(StopReason.BOUND, machines=(BAD, GOOD), **facts)
    bad, good = seen_machines(book.history, log_id="a")[-2:]
    assert (bad.end, bad.machines, bad.why) == ("slow", 1, "rank 3 took 1.40 times as long as the other ranks")
    assert (good.end, good.machines, good.why) == ("ended", 2, "")
    assert (bad.slowness, good.slowness) == (None, None), "all machines waited for the slow rank"


@pytest.mark.parametrize(("rank", "end"), [(3, "ended"), (2, "slow")])
def test_a_rank_that_is_slow_on_two_machines_in_a_row_blames_only_the_first(rank, end):
    book = committed()
    book.attempt(StopReason.BOUND, machines=(BAD,), **slow(BAD))
    book.attempt(StopReason.BOUND, machines=(GOOD,), **slow(GOOD, rank))
    assert (ends(book), ends(book, GOOD)) == (["slow"], ["ended", end])


def test_the_machine_of_a_slow_rank_stays_blamed_if_the_rank_is_slow_there_again():
    book = committed()
    for _ in range(2):
        book.attempt(StopReason.LOST, machines=(BAD, GOOD), **slow(BAD))
    assert (ends(book), ends(book, GOOD)) == (["slow", "slow"], ["ended", "died", "died"])
