"""What the continuity benchmark says of the cost and of SIGKILLs comes from real runs."""

from __future__ import annotations

import pytest

from benchmarks.continuity.cost import STEP_SECONDS, Cost, bytes_per_step
from benchmarks.continuity.kills import Kills


def cost(**seconds: float) -> Cost:
    free = dict.fromkeys(("step_overhead_seconds", "witness_seconds", "digest_seconds", "heartbeat_seconds"), 0.0)
    return Cost(**({"step_seconds": 0.02} | free | seconds))


@pytest.mark.parametrize(
    ("seconds", "share"),
    [
        ({"step_overhead_seconds": 0.0002, "witness_seconds": 0.0002}, 0.0002 / STEP_SECONDS),
        ({"step_overhead_seconds": 0.0002}, 0.92 * 0.0002 / STEP_SECONDS),
        ({"witness_seconds": 0.001}, 0.08 * 0.001 / STEP_SECONDS),
        ({"digest_seconds": 0.02}, 0.01),
        ({"heartbeat_seconds": 0.002}, 0.001),
    ],
)
def test_the_share_counts_what_is_rare_by_how_often_it_comes(seconds, share):
    assert cost(**seconds).step_overhead_share == pytest.approx(share)


@pytest.mark.matrix
def test_a_step_leaves_a_row_of_the_curve_and_its_share_of_the_seals():
    found = bytes_per_step(steps=120)
    assert found["bytes_per_step"] == pytest.approx(
        found["curve_bytes_per_step"] + found["seal_bytes_per_step"], abs=0.2
    )
    assert found["curve_bytes_per_step"] > 8
    assert found["seal_bytes_per_step"] > 8


@pytest.mark.matrix
def test_runs_that_are_killed_resume_exactly_and_end_like_one_that_is_not():
    found = Kills(kills=1, seed=0, say=lambda text: None, steps=60).make()
    assert (found["sigkills"], found["sigkill_problems"], found["sigkill_false_alarms"]) == (1, [], 0)
    assert found["sigkill_final_identical"]
    assert found["sigkill_resumes"] > 0
    assert found["sigkill_verdicts"].keys() <= {"exact", "unverified"}
