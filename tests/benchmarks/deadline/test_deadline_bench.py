"""The deadline benchmark's figures come from its runs: on traces small enough to count by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.deadline.adversary import Adversary, adversarial_runs
from benchmarks.deadline.paper import hours_against_the_paper
from benchmarks.deadline.policies import NAMES, Options, measure, settings
from segue.policies import POLICIES
from segue.simulation.traces import Trace
from tests.support.rooms import ROOT

KEYS = {
    *(
        *("cost_vs_optimum_with_handover", "cost_vs_optimum_with_lost_work"),
        "cost_vs_on_demand",
        "cost_vs_optimum",
        "p95_vs_optimum",
        "vs_uniform_progress",
        "misses",
        "runs",
    ),
    *("mean_vs_uniform_progress", "cost_vs_optimum_low", "cost_vs_optimum_high", "by_trace"),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name, up in (("a22-always", 1), ("a22-never", 0)):
        document = {"metadata": {"gap_seconds": 3600}, "data": [up] * 100}
        (folder / f"{name}.json").write_text(json.dumps(document))
    said: list[str] = []
    made = measure(Options(folder, starts=1, adversarial=64, jobs=2), say=said.append)
    assert "2 of 2 traces" in said
    return made


@pytest.mark.matrix
def test_every_policy_has_its_figures(report):
    assert {NAMES.get(name, name) for name in POLICIES} <= report.keys()
    for name in POLICIES:
        row = report[NAMES.get(name, name)]
        assert row.keys() >= KEYS
        assert (row["misses"], row["runs"]) == (0, 2 * 24)
        assert set(row["by_trace"]) == {"a22-always", "a22-never"}
        assert row["cost_vs_optimum_low"] <= row["cost_vs_optimum"] <= row["cost_vs_optimum_high"]
        assert row["cost_vs_optimum"] <= row["cost_vs_optimum_with_handover"]
        # Spot that never dies loses nothing.
        assert row["cost_vs_optimum"] == row["cost_vs_optimum_with_lost_work"]
        assert (row["misses_with_lost_work"], row["lost_hours_with_lost_work"]) == (0, 0.0)
        assert row["vs_uniform_progress_with_lost_work"] > 0


@pytest.mark.matrix
def test_where_spot_always_is_or_never_the_optimum_is_known(report):
    # Three times as dear where spot is there to the end; nothing else to be had where it is not.
    assert report["on_demand"]["by_trace"] == {"a22-always": 3.0, "a22-never": 1.0}
    assert report["greedy"]["by_trace"] == {"a22-always": 1.0, "a22-never": 1.0}
    assert report["uniform_progress"]["vs_uniform_progress"] == 1.0
    # Once it is ahead of its line it lets on-demand go, and has to start it again.
    assert report["uniform_progress"]["by_trace"]["a22-always"] == 1.0
    assert 1.0 < report["uniform_progress"]["by_trace"]["a22-never"] < 1.1
    assert report["on_demand"]["vs_uniform_progress"] == pytest.approx(6 / 4, rel=0.1)


@pytest.mark.matrix
def test_no_adversary_makes_a_run_late_that_can_be_in_time_and_hopeless_runs_are_reported(report):
    assert report["adversarial_runs"] == 8 * len(POLICIES)
    assert report["adversarial_misses"] == report["adversarial_hopeless_unsaid"] == 0
    for factor in ("1.2", "1.5"):
        assert report[f"adversarial_misses_starts_{factor}"] == 0
        assert report[f"adversarial_runs_starts_{factor}"] == 16 * len(POLICIES)
    some = adversarial_runs(3, 300, seed=1)
    assert some["runs"] == 300 * len(POLICIES)
    assert some["misses"] == some["unsaid"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize("factor", [1.2, 1.5])
def test_starts_that_take_longer_than_the_run_is_told_make_it_late_only_without_the_margin(factor, monkeypatch):
    def misses() -> int:
        return sum(adversarial_runs(part, 20, seed=9, start_factor=factor)["misses"] for part in range(12))

    assert misses() == 0
    monkeypatch.setattr("segue.simulation.simulator.UNSEEN_START_FACTOR", 1.0)
    monkeypatch.setattr("segue.simulation.simulator.SEEN_START_FACTOR", 1.0)
    assert misses() > 10


def test_an_adversary_goes_up_and_down_by_the_mode_of_each_run():
    adversary = Adversary(2000, np.random.default_rng(0))
    kept = np.zeros(3)
    for mode in range(3):
        before = adversary.at(2 * mode, np.full(2000, mode, np.int8))
        kept[mode] = (adversary.at(2 * mode + 1, np.full(2000, mode, np.int8)) == before).mean()
    assert ((kept > 0.3) & (kept < 0.7)).all()


def test_without_the_clamp_the_adversary_wins(monkeypatch):
    monkeypatch.setattr("segue.policy.clamp.permits", lambda slack, **_: np.ones(slack.shape, bool))
    assert adversarial_runs(0, 200, seed=0)["misses"] > 20


def test_the_paper_is_compared_only_on_its_own_traces():
    always = Trace("a22-x", 600.0, np.ones(800, bool))
    assert hours_against_the_paper([Trace("p23-x", 600.0, always.up)]) == {}
    found = hours_against_the_paper([always], starts=2)
    assert (found["paper_greedy_on_demand_hours"], found["paper_greedy_spot_hours"]) == (0.0, 48.0)


def test_short_traces_get_half_of_the_work():
    short, long = (Trace("x", 600.0, np.ones(int(hours * 6), bool)) for hours in (191, 193))
    assert {setting.job.work_seconds for setting in settings(short)} == {24 * 3600.0}
    assert {setting.job.work_seconds for setting in settings(long)} == {48 * 3600.0}


@pytest.mark.matrix
def test_a_trace_that_is_too_short_is_refused_before_anything_runs_or_prefect_is_loaded(tmp_path):
    (tmp_path / "short.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 0, 1]}))
    look = (
        "import sys; sys.argv = ['benchmarks', 'deadline', '--traces', 'short.json']\n"
        "from benchmarks.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, [name for name in ('torch', 'prefect') if name in sys.modules])"
    )
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", look]
    ended = subprocess.run(command, text=True, cwd=tmp_path, env=path, capture_output=True, check=True)
    assert "trace short covers 30 min, and the job needs 48.0 h" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "2 []"
