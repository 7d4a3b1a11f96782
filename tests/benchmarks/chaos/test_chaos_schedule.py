"""Schedules of faults: the same seed gives the same faults, every kind has its turn, wrong files are refused."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.chaos.faults.registry import KINDS, times
from benchmarks.chaos.schedule import drawn, read_schedule
from segue.errors import UsageError


def test_ten_minutes_have_at_least_sixty_faults_of_every_kind_equally_often():
    plan = drawn(seed=3, minutes=10, kinds=times())
    made = Counter(fault.kind for fault in plan.faults)
    assert len(plan.faults) >= 60
    assert set(made) == set(KINDS)
    assert max(made.values()) - min(made.values()) <= 1
    assert all(0 < fault.at_seconds < 600 for fault in plan.faults)
    assert plan == drawn(seed=3, minutes=10, kinds=times())
    assert plan != drawn(seed=4, minutes=10, kinds=times())


def test_the_time_of_a_fault_is_within_that_of_its_kind():
    for fault in drawn(seed=0, minutes=20, kinds=times()).faults:
        shortest, longest = KINDS[fault.kind].seconds
        assert shortest <= fault.for_seconds <= longest


def test_a_schedule_from_a_file_is_that_of_the_file_and_gets_the_times_it_lacks(tmp_path):
    file = tmp_path / "faults.json"
    file.write_text(
        json.dumps(
            {
                "faults": [
                    {"kind": "server-kill", "at_seconds": 9, "for_seconds": 4, "pick": 2},
                    {"kind": "store-away", "at_seconds": 3.5},
                ]
            }
        )
    )
    given, timed = read_schedule(file, kinds=times()).faults
    assert (given.kind, given.at_seconds, given.for_seconds, given.pick) == ("server-kill", 9, 4, 2)
    assert KINDS["store-away"].seconds[0] <= timed.for_seconds <= KINDS["store-away"].seconds[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is not a schedule of faults"),
        ('{"faults": []}', "faults"),
        ('{"faults": [{"kind": "server-kill"}]}', "faults.0.at_seconds"),
        ('{"faults": [{"kind": "server-kill", "at_seconds": -1}]}', "faults.0.at_seconds"),
        ('{"faults": [{"kind": "server-kill", "at_seconds": 1, "every": 3}]}', "faults.0.every"),
        ('{"faults": [{"kind": "meteor", "at_seconds": 1}]}', "unknown kinds of faults: meteor"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_field_that_is_wrong(tmp_path, text, said):
    file = tmp_path / "faults.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="Fix: ") as refused:
        read_schedule(file, kinds=times())
    assert said in str(refused.value)


def test_a_schedule_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_schedule(tmp_path / "none.json", kinds=times())
