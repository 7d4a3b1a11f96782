"""The least possible cost: counted by hand, and beaten by no policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.deadline.optimum import cheapest
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Job
from segue.simulation.simulator import simulate

TICK, HOUR = 600.0, 3600.0
JOB = Job(total_seconds=3 * HOUR, work_seconds=HOUR, changeover_seconds=300.0, knowledge="free", handover=False)


def ticks(text: str) -> np.ndarray:
    """One run of spot, a letter a tick: u up, d down; the last letter goes on to the end."""
    return np.array([[letter == "u" for letter in text.ljust(19, text[-1])]])


def test_the_optimum_knows_when_to_wait_and_when_to_pay():
    assert cheapest(JOB, ticks("u"), tick_seconds=TICK)[0] == 300 + HOUR
    assert cheapest(JOB, ticks("d"), tick_seconds=TICK)[0] == 3 * (300 + HOUR)
    # Two down intervals can be waited out; an up interval of one tick between them is not worth a boot.
    text = "d" * 6 + "u" + "d" * 2 + "u" * 9
    assert cheapest(JOB, ticks(text), tick_seconds=TICK)[0] == 300 + HOUR
    # 25 minutes in the only up interval, the other 35 on on-demand.
    assert cheapest(JOB, ticks("uuud"), tick_seconds=TICK)[0] == (300 + 1500) + 3 * (300 + 2100)


def test_an_optimum_that_hands_over_needs_no_slack_for_the_boot():
    tight = replace(JOB, total_seconds=300 + HOUR)
    up = ticks("du")
    assert cheapest(tight, up, tick_seconds=TICK)[0] == 3 * (300 + HOUR)
    # A tick of on-demand, of which 300 s are its boot; a third of a tick of it beside the boot of spot (half, rounded
    # down to a third); and the rest on spot.
    with_handover = cheapest(replace(tight, handover=True), up, tick_seconds=TICK)[0]
    assert with_handover == 3 * 600 + 3 * 200 + (HOUR - 300)
    for text in ("u", "d"):
        assert cheapest(replace(JOB, handover=True), ticks(text), tick_seconds=TICK) == cheapest(
            JOB, ticks(text), tick_seconds=TICK
        )


@pytest.mark.parametrize("handover", [False, True])
def test_no_policy_beats_the_optimum(handover):
    random = np.random.default_rng(3)
    up = random.random((40, 19)) < 0.5
    job = replace(JOB, handover=handover)
    best = cheapest(job, up, tick_seconds=TICK)
    assert (best <= cheapest(JOB, up, tick_seconds=TICK)).all()
    for name in (
        "plan",
        "greedy",
        "uniform_progress",
        "slack_age",
        "eager_progress",
        "time_sliced",
        "threshold",
        "on_demand_only",
    ):
        assert (simulate(named_policy(name), job, up, tick_seconds=TICK).cost >= best - 1e-6).all(), name


def test_an_impossible_deadline_has_no_cheapest_way():
    job = Job(total_seconds=HOUR, work_seconds=2 * HOUR, changeover_seconds=0.0)
    assert cheapest(job, ticks("u"), tick_seconds=TICK)[0] == np.inf
