"""`python -m benchmarks overhead` measures whole processes of every loop, and says when a figure is missed."""

from __future__ import annotations

import sys

import psutil
import pytest

from benchmarks.common.child import child_environment
from benchmarks.overhead import measure
from benchmarks.overhead.command import MOST
from benchmarks.overhead.empty import STEPS, measure_empty
from benchmarks.overhead.sampler import USER
from benchmarks.overhead.turns import Turns


@pytest.mark.matrix
def test_every_loop_trains_in_a_process_of_its_own_and_has_its_figures(monkeypatch):
    monkeypatch.setattr(measure, "SIZES", (measure.Size("small", 16, 10), measure.Size("large", 32, 10)))
    monkeypatch.setattr(measure, "TURNS", 6)
    said = []
    found = measure.measure(1, say=said.append)
    assert said == ["round 1 of 1: small", "round 1 of 1: large"]
    for name, key in MOST:
        assert isinstance(found[name][key], float)
    for name in ("lightning", "accelerate"):
        assert found[name]["large_x_bare"] > 0
    for name in ("recipe", "session", "lightning"):
        assert found[name]["small_memory_mb_beyond_bare"] > 1
    for name in ("bare_loader", "bare"):
        assert 0 < found[name]["small_step_ms"] < 1000
    assert found["recipe"]["small_x_bare"] > 0


_TRAINER = """
import sys, time
from pathlib import Path
from benchmarks.overhead.turns import Counter
counter = Counter(Path(sys.argv[1]), steps=2)
for _ in range(5):
    counter.step_begins()
    time.sleep(0.01)
"""


def test_a_process_makes_one_turn_at_a_time_and_is_stopped_between_them(tmp_path):
    turns = Turns(tmp_path / "turns")
    command = [sys.executable, "-c", _TRAINER, str(tmp_path / "turns")]
    training = measure._Script(command, env=child_environment())
    turns.stop_after_turn(training)
    assert psutil.Process(training.pid).status() == psutil.STATUS_STOPPED
    turns.go_on(training)
    turns.stop_after_turn(training)
    turns.go_on(training)
    assert training.wait() == 0
    startup_seconds, seconds = turns.notes()
    assert startup_seconds > 0
    assert len(seconds) == 2
    assert all(each >= 0.02 for each in seconds)


def test_a_process_that_ends_within_a_turn_is_no_endless_wait(tmp_path):
    turns = Turns(tmp_path / "turns")
    training = measure._Script([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="exit code 3 before its last turn"):
        turns.stop_after_turn(training)


@pytest.mark.matrix
def test_a_step_that_does_nothing_is_measured_by_part_with_warm_and_with_cold_caches():
    found = measure_empty()
    assert {loop: tuple(by_kind) for loop, by_kind in found.items()} == dict.fromkeys(found, tuple(STEPS))
    for by_kind in found.values():
        assert by_kind["cold"][USER] > by_kind["warm"].get(USER, 0.0)
        assert all(by_kind[kind].get("training loop", 0.0) > 0 for kind in STEPS)
    assert found["recipe"]["warm"]["torch's DataLoader"] > 0
    assert "torch's DataLoader" not in found["session"]["warm"]
