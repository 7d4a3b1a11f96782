"""The figures of `python -m benchmarks turnaround`, and once the whole benchmark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.turnaround.command import show
from benchmarks.turnaround.measure import PlannedEnd, Turnaround, report
from benchmarks.turnaround.run_starts import RunStart, medians

ROOT = Path(__file__).parents[2]


def test_the_figures_are_medians_and_orchestration_ends_where_the_flow_begins():
    turnarounds = [Turnaround(0.25, 1.0, 0.5, n) for n in (0.25, 9.25, 0.75)]
    ends = [PlannedEnd(n, 0.25, 0.75, 0.25) for n in (1.25, 0.125, 0.25)]
    found = report(turnarounds, ends, [0.5, 0.25])
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
        "planned_end_last_step_to_report_seconds": 0.25,
        "planned_end_report_to_decision_seconds": 0.25,
        "planned_end_decision_to_claim_seconds": 0.75,
        "planned_end_claim_to_first_step_seconds": 0.25,
    }
    screen = StringIO()
    starts = [RunStart(8.0, n, 0.5) for n in (4.0, 5.0, 9.0)]
    show(
        found | medians(starts, name="cold_run") | medians(starts[:1], name="warm_run"), Console(file=screen, width=100)
    )
    rows = [re.split(r"  +", line.strip()) for line in screen.getvalue().splitlines()]
    assert ["from the report to the decision", "-", "0.25"] in rows
    assert ["from the flow run to its first line", "1.00", "-"] in rows
    assert ["from the claim to the first new step", "0.75", "0.25"] in rows
    assert ["in all", "2.50", "1.50"] in rows
    assert ["from the decision to the claim", "5.00", "4.00"] in rows
    assert ["in all", "13.50", "12.50"] in rows


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
