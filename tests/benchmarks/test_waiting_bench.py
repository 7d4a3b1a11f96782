"""The waiting benchmark measures a real parent at a log of the length that was asked for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.waiting.command import show
from benchmarks.waiting.logs import RUN_ID, spec_of, write_log
from benchmarks.waiting.remote_store import RemoteStore
from benchmarks.waiting.report import MOST_CPU_SHARE, Options, measure, passed
from benchmarks.waiting.served import served_passed
from segue.clock import SystemClock
from segue.policy import clamp
from segue.policy.estimates import situation
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import LocalStore

LENGTHS = (20, 600)


@pytest.fixture(scope="module")
def report():
    said = []
    options = Options(lengths=LENGTHS, seconds=0.5, remote_seconds=0.5, latency_seconds=0.001, with_s3=False)
    report = measure(options, say=said.append)
    assert said[0] == "waiting local, 20 records"
    return report


@pytest.mark.matrix
def test_every_figure_is_measured(report):
    places = [f"{place}_{length}" for place in ("local", "remote") for length in LENGTHS]
    reloads = ["local", "local_without_packs", "remote", "remote_without_packs"]
    figures = {f"{name}_{place}" for name in ("cpu_share", "requests_a_minute") for place in places}
    figures |= {f"{name}_{reload}" for name in ("reload_seconds", "reload_cpu_seconds") for reload in reloads}
    assert set(report) == figures | {"lengths", "latency_seconds", "load_average_before"}
    assert all(report[f"cpu_share_local_{length}"] > 0 for length in LENGTHS)
    shown = io.StringIO()
    show(report, Console(file=shown, width=120))
    assert "% of a core" in shown.getvalue()


def test_a_figure_that_is_too_high_fails():
    good = {"cpu_share_local_100": 0.01, "requests_a_minute_remote_100": 24.0, "reload_seconds_s3": 1.0}
    assert passed(good | {"reload_seconds_s3_without_packs": 60.0, "requests_a_minute_local_100": 250.0})
    for name in good:
        assert not passed(good | {name: 100.0})
    assert not passed(good | {"cpu_share_local_100": 1.1 * MOST_CPU_SHARE})


@pytest.mark.parametrize(
    ("memory_bytes", "cpu_share_a_run", "is_passed"),
    [(2_000_000_000, 0.0199, True), (2_000_000_001, 0.0199, False), (2_000_000_000, 0.02, False)],
)
def test_a_hundred_served_runs_pass_with_two_gigabytes_and_less_than_two_percent_of_a_core_each(
    memory_bytes, cpu_share_a_run, is_passed
):
    report = {"runs": 100, "memory_bytes": memory_bytes, "cpu_share_a_run": cpu_share_a_run}
    assert served_passed(report) is is_passed


def test_the_log_is_that_of_a_live_attempt_with_time_left(tmp_path):
    store, now = LocalStore(tmp_path / "store").create(), SystemClock().now()
    spec = spec_of(600, now=now)
    plan = write_log(store, spec, records=600, now=now)
    counted = RemoteStore(store)
    history = read_history(RunLog(counted, RUN_ID).reload())
    assert 600 <= history.next_slot < 620
    assert (history.open_plan, history.damage) == (plan, ())
    assert history.attempt_of(plan.segment, plan.attempt) is not None
    here = situation(spec, history, now=now)
    assert here.work_seconds > 0
    assert clamp.seconds_to_recall(here) > 0
