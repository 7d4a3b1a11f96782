"""Many runs at once on few slots: all finish in time, and nothing is trained twice."""

from __future__ import annotations

import pytest

from benchmarks.fleet.measure import Options, measure, passed
from tests.support.servers.postgres import running_postgres

pytestmark = pytest.mark.prefect


def judged(options: Options) -> dict[str, object]:
    report = measure(options, say=lambda text: None)
    assert passed(report), report
    assert report["preemptions"] == 0, f"nobody takes a machine: a wait was counted as a preemption: {report}"
    # A run gives spot up once, when its deadline requires on-demand.
    assert report["attempts_without_a_machine"] <= options.runs, report
    return report


@pytest.mark.soak
def test_eight_runs_that_spot_alone_would_make_late_move_to_on_demand_in_time(tmp_path):
    with running_postgres(tmp_path) as database:
        report = judged(Options(runs=8, spot_slots=1, on_demand_slots=3, database=database, is_tight=True))
    assert report["database"] == "PostgreSQL"
    assert report["attempts_on_demand"] > 0, report


def test_a_run_that_is_late_or_trained_twice_does_not_pass():
    good = {"runs": 2, "finished": 2, "late": 0, "trained_twice": 0}
    assert passed(good)
    assert not passed(good | {"late": 1})
    assert not passed(good | {"finished": 1})
    assert not passed(good | {"trained_twice": 1})
