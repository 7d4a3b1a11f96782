"""`segue bench overhead` measures whole processes of every loop, and says when a figure is missed."""

from __future__ import annotations

import pytest

from benchmarks.overhead import measure
from benchmarks.overhead.command import MOST


@pytest.mark.soak
def test_every_loop_trains_in_a_process_of_its_own_and_has_its_figures(monkeypatch):
    monkeypatch.setattr(measure, "SIZES", (measure.Size("small", 16, 60), measure.Size("large", 32, 60)))
    said = []
    found = measure.measure(1, say=said.append)
    assert said[0] == "round 1 of 1: small, bare_loader"
    assert len(said) == 12
    for name, key in MOST:
        assert isinstance(found[name][key], float)
    for name in ("lightning", "accelerate"):
        assert found[name]["large_x_bare"] > 0
    for name in ("bare_loader", "bare"):
        assert 0 < found[name]["small_step_ms"] < 1000
    # Two steps before the first counted one: a loop that noted nothing would have failed.
    assert found["recipe"]["small_x_bare"] > 0


def test_a_step_is_what_lies_between_two_notes_and_the_first_ones_do_not_count(tmp_path):
    stamps = tmp_path / "stamps.json"
    stamps.write_text('{"started": 1.0, "stamps": [3.0, 4.0, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5]}')
    run = measure._read(stamps)
    assert (run.step_seconds, run.startup_seconds) == (0.5, 3.0)
