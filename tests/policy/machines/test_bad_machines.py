"""Which machines an attempt avoids, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from segue.policy.machines.bad_machines import bad_machines
from segue.records import Machine, MachineCheck, SeenMachine, StopReason
from segue.runlog.entries import MachineEntry
from tests.support.histories import Logbook, make_spec

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SLURM = {"spot": "spot", "on_demand": "ondemand", "folder": "jobs"}


def seen(end: str = "ended", *, hours_ago: float = 0.0, name: str = "n1", **fields) -> SeenMachine:
    facts = {"machine": Machine(kind="slurm", name=name), "pool": "p", "log_id": "a", "segment": 0, "attempt": 1}
    facts |= {"begun_at": NOW - timedelta(hours=hours_ago), "seconds": 0.0, "end": end, "why": end}
    return SeenMachine(**facts | fields)


@pytest.mark.parametrize(
    ("observations", "is_bad"),
    [
        ([seen("check_failed")], True),
        ([seen("check_failed", hours_ago=23.9)], True),
        ([seen("check_failed", hours_ago=24.1)], False),
        ([seen("wrong_numbers")], True),
        ([seen("wrong_numbers", machines=4)], False),
        ([seen("hung")], False),
        ([seen("hung"), seen("hung", hours_ago=1)], True),
        ([seen("died") for _ in range(1000)], False),
        ([*(seen("died") for _ in range(20)), seen("hung")], True),
        ([seen(slowness=1.3)], False),
        ([seen(slowness=1.3), seen(slowness=1.3)], True),
        ([seen(slowness=1.19) for _ in range(9)], False),
        ([seen() for _ in range(9)], False),
    ],
)
def test_a_machine_is_bad_by_recent_evidence_and_never_by_deaths_alone(observations, is_bad):
    assert bool(bad_machines(observations, now=NOW)) is is_bad


def test_a_machine_is_avoided_until_the_weight_of_its_evidence_has_fallen_to_one():
    (bad,) = bad_machines([seen("check_failed"), seen("wrong_numbers")], now=NOW)
    assert bad.until == NOW + timedelta(days=2)
    assert bad_machines([seen("check_failed"), seen("wrong_numbers")], now=bad.until - timedelta(seconds=1))
    assert not bad_machines([seen("check_failed"), seen("wrong_numbers")], now=bad.until + timedelta(seconds=1))


def unfit(book: Logbook, name: str, kind: str = "slurm") -> None:
    check = MachineCheck(seconds=0.1, results={}, problems=("disk: full",))
    machine = Machine(kind=kind, name=name)
    book.write(MachineEntry, segment=0, attempt=1, deployment="segment/spot", machine=machine, machine_check=check)


def test_the_next_plan_avoids_the_bad_nodes_of_its_cluster_and_its_reason_names_every_bad_machine():
    book = Logbook(make_spec(slurm=SLURM))
    unfit(book, "n7")
    unfit(book, "box", kind="host")
    decision = book.ask()
    assert decision.plan.avoided_nodes == ("n7",)
    assert "the slurm node n7: disk: full" in decision.reason
    assert "the machine box: disk: full" in decision.reason


def test_after_an_attempt_that_avoided_nodes_and_got_no_capacity_the_next_one_avoids_none():
    book = Logbook(make_spec(slurm=SLURM))
    unfit(book, "n7")
    plan = book.plan()
    assert plan.avoided_nodes == ("n7",)
    book.report(plan, StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)
    assert book.plan().avoided_nodes == ()


def test_an_attempt_avoids_at_most_eight_nodes():
    book = Logbook(make_spec(slurm=SLURM))
    for number in range(20):
        unfit(book, f"n{number}")
    assert len(book.ask().plan.avoided_nodes) == 8


def test_failed_checks_do_not_add_up_so_that_eight_ranks_make_a_machine_bad_for_a_day():
    (bad,) = bad_machines([seen("check_failed") for _ in range(8)], now=NOW)
    assert bad.until == NOW + timedelta(days=1)


def test_a_request_that_never_gives_up_avoids_no_node():
    book = Logbook(make_spec(slurm=SLURM, policy={"name": "on_demand_only"}))
    unfit(book, "n7")
    plan = book.ask().plan
    assert (plan.start_within_seconds, plan.avoided_nodes) == (None, ())


def test_a_reason_names_three_bad_machines_and_the_number_of_the_others():
    book = Logbook(make_spec())
    for number in range(5):
        unfit(book, f"box{number}", kind="host")
    reason = book.ask().reason
    assert reason.count("disk: full") == 3
    assert reason.endswith("; and 2 more")
