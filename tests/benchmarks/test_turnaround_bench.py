"""The figures of `python -m benchmarks turnaround`, and once the whole benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.turnaround.measure import Turnaround, report

ROOT = Path(__file__).parents[2]


def test_the_figures_are_medians_and_orchestration_ends_where_the_flow_begins():
    found = report([Turnaround(0.25, 1.0, 0.5, n) for n in (0.25, 9.25, 0.75)], [2.5, 1.0, 1.5], [0.5, 0.25])
    assert found == {
        "turnarounds": 3,
        "decision_to_first_step_seconds": 2.5,
        "orchestration_seconds": 1.25,
        "slowest_seconds": 11.0,
        "planned_end_seconds": 1.5,
        "slowest_planned_end_seconds": 2.5,
        "death_to_report_seconds": 0.38,
        "slowest_death_to_report_seconds": 0.5,
        "decision_to_created_seconds": 0.25,
        "created_to_running_seconds": 1.0,
        "running_to_claim_seconds": 0.5,
        "claim_to_first_step_seconds": 0.75,
    }


@pytest.mark.matrix
@pytest.mark.prefect
@pytest.mark.timeout(1500)
def test_the_benchmark_measures_each_part_on_a_real_prefect():
    command = [sys.executable, "-m", "benchmarks", "turnaround", "--count", "1", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr  # 1: slower than it should be, as on a busy machine.
    found = json.loads(ended.stdout)
    assert found["turnarounds"] == 1
    assert all(found[name] > 0 for name in found)
