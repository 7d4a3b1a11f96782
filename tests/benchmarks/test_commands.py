"""Every `python -m benchmarks` command measures what is segue's own, at its smallest size, in CI."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import app
from benchmarks.common.samples import KEYS
from benchmarks.dispatch.measure import report as report_seconds
from benchmarks.dispatch.measure import requests_of

pytestmark = pytest.mark.timeout(1500)  # Several start a whole Prefect, beside other tests.

ROOT = Path(__file__).parents[2]

COVERED = {
    "chaos": "chaos.test_chaos_bench:test_a_schedule_from_a_file_is_played_and_loses_nothing_and_leaves_nothing",
    "checkpoint": "test_commands:test_every_own_figure_of_checkpoints_is_measured_and_the_first_ones_are_said",
    "continuity": "test_continuity_bench:test_faults_are_found_and_named_and_commit_nothing",
    "crash": "test_commands:test_kills_are_counted_by_where_they_hit",
    "datacheck": "test_commands:test_the_data_check_is_timed_beside_one_frame",
    "deadline": "deadline.test_deadline_bench:test_every_policy_has_its_figures",
    "dispatch": "test_commands:test_starts_are_timed_and_the_refusals_of_all_requests_are_counted",
    "every": "test_commands:test_all_benchmarks_write_one_table_with_date_machine_and_versions",
    "fencing": "test_fencing_bench:test_no_world_loses_tears_or_doubles_a_commit_or_passes_over_one",
    "fleet": "test_commands:test_a_fleet_of_two_finishes_in_time",
    "growth": "test_growth_bench:test_each_thing_is_measured_at_each_size",
    "simulate": "deadline.test_simulate:test_policies_are_compared_in_one_json_object",
    "overhead": "test_overhead_bench:test_every_loop_trains_in_a_process_of_its_own_and_has_its_figures",
    "turnaround": "test_turnaround_bench:test_the_benchmark_measures_each_part_on_a_real_prefect",
    "waiting": "test_waiting_bench:test_every_figure_is_measured",
}
"""Command -> a test that fails when it measures nothing of segue's own."""


def report_of(command: str, *options: str, codes: tuple[int, ...] = (0,), cwd: Path = ROOT) -> tuple[dict, str]:
    """The JSON that a command prints, and what it says meanwhile."""
    asked = [sys.executable, "-m", "benchmarks.__main__", command, *options, "--json"]
    done = subprocess.run(asked, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout), done.stderr


def test_each_command_has_a_test_of_its_own_figures_that_ci_runs_at_every_landing():
    assert {command.callback.__name__ for command in app.registered_commands} == COVERED.keys()
    for test in COVERED.values():
        module, _, name = test.partition(":")
        found = importlib.import_module(f"tests.benchmarks.{module}")
        marks = {mark.name for mark in getattr(getattr(found, name), "pytestmark", [])}
        assert "soak" not in marks, test


@pytest.mark.matrix
def test_every_own_figure_of_checkpoints_is_measured_and_the_first_ones_are_said(tmp_path):
    small = ("--size", "4MB", "--tensors", "8", "--many-tensors", "50", "--rounds", "1")
    only = ("--only", "ours,boto3_default", "--folder", str(tmp_path))
    report, said = report_of("checkpoint", *small, *only)
    assert report["ours_failed"] == {}
    assert {key: report[key] for key in KEYS if not report[key]} == {}
    assert [line.split()[0] for line in said.splitlines()][:3] == ["limits:", "first", "round"]
    assert "first save of ours: blocked 0." in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.matrix
def test_segue_can_be_measured_alone(tmp_path):
    small = ("--size", "1MB", "--tensors", "2", "--many-tensors", "0", "--rounds", "1", "--no-steps")
    report, _ = report_of("checkpoint", *small, "--only", "ours", "--folder", str(tmp_path))
    assert report["ours_failed"] == {}
    assert report["upload_x_boto3_default"] is None
    assert report["upload_mb_per_s"] > 0
    assert report["stall_x_memcpy"] > 0


@pytest.mark.matrix
def test_kills_are_counted_by_where_they_hit():
    report, _ = report_of("crash", "--kills", "2", "--quick")
    assert (report["kills"], report["kills_on_local"]) == (2, 2)
    assert sum(count for name, count in report.items() if name.startswith("kills_at_")) == 2
    assert (report["commits_lost"], report["final_identical"], report["orphans_left"]) == (0, True, 0)


@pytest.mark.matrix
def test_all_benchmarks_write_one_table_with_date_machine_and_versions(tmp_path):
    asked = [
        sys.executable,
        "-m",
        "benchmarks",
        "all",
        "--quick",
        "--only",
        "fencing,growth",
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads((tmp_path / "all.json").read_text())
    assert {"date", "processor", "cores", "torch", "prefect", "lightning"} <= report["about"].keys()
    assert [*report["benchmarks"]] == ["fencing", "growth"]
    assert done.returncode == int(any(each["exit_code"] for each in report["benchmarks"].values()))
    assert report["benchmarks"]["fencing"]["figures"]["worlds"] == 500
    assert "| `fencing` | worlds | 500 |" in (tmp_path / "all.md").read_text() == done.stdout
    assert done.stderr.splitlines()[0] == "1 of 2: fencing"


@pytest.mark.matrix
def test_the_data_check_is_timed_beside_one_frame():
    report, _ = report_of("datacheck", "--rows", "1000", "--rounds", "1")
    assert report["expectations"] > 10
    assert [row["check"] for row in report["results"]] == ["segue", "one frame"]
    assert all(row["seconds"] > 0 and row["peak GB"] > 0 for row in report["results"])


@pytest.mark.matrix
@pytest.mark.prefect
def test_a_fleet_of_two_finishes_in_time():
    report, _ = report_of("fleet", "--runs", "2", "--spot-slots", "1", "--on-demand-slots", "1", "--s3")
    assert (report["runs"], report["finished"], report["late"], report["trained_twice"]) == (2, 2, 0, 0)
    assert report["store_requests_a_run"] > 0


@pytest.mark.matrix
def test_starts_are_timed_and_the_refusals_of_all_requests_are_counted():
    report, said = report_of("dispatch", "--count", "5", "--busy-loops", "1", codes=(0, 1))
    assert (report["dispatches"], report["busy_loops"]) == (5, 1)
    assert 0 < report["start_median_seconds"] <= report["start_p99_seconds"] <= report["start_longest_seconds"]
    assert report["requests"] > 50, "those of three workers are among them"
    assert (report["requests_refused"], report["refused_by_request"]) == (0, {})
    assert "5 of 5 started" in said


def test_refused_requests_are_counted_by_what_was_asked():
    answers = (
        ("PATCH /api/flow_runs/6d1b0f0e-1c2d-4e5f-8a9b-0c1d2e3f4a5b/labels", 503),
        ("PATCH /api/flow_runs/7d1b0f0e-1c2d-4e5f-8a9b-0c1d2e3f4a5b/labels", 503),
        ("POST /api/work_pools/spot/get_scheduled_flow_runs", 200),
    )
    log = "".join(f'INFO:     127.0.0.1:1 - "{asked} HTTP/1.1" {status} OK\n' for asked, status in answers) + "else\n"
    found = report_seconds([0.5, 1.0, 4.0], requests_of(log), busy_loops=0, up_seconds=8.0)
    assert (found["requests"], found["requests_refused"]) == (3, 2)
    assert found["refused_by_request"] == {"PATCH /api/flow_runs/ID/labels": 2}
    assert (found["start_median_seconds"], found["start_p99_seconds"]) == (1.0, 4.0)
