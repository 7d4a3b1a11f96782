"""The fencing benchmark: no world has a fault, and worlds show the faults of code that believes its first read."""

from __future__ import annotations

import pytest

from benchmarks.fencing.world import World
from benchmarks.fencing.worlds import run_worlds


@pytest.mark.matrix
def test_no_world_loses_tears_or_doubles_a_commit_or_passes_over_one():
    said: list[str] = []
    found = run_worlds(50, say=said.append)
    assert found["faults"] == []
    assert {found[kind] for kind in ("lost", "torn", "stale", "double", "foreign", "crash")} == {0}
    assert min(found["wrong_reads"], found["commits"], found["resumes"]) > 100
    assert {"SupersededError", "LogReplacedError"} <= found["ends"].keys()
    assert said == ["50 of 50 worlds, 0 with faults"]


@pytest.mark.parametrize(
    ("changed", "value", "seed", "kind"),
    [
        ("segue.checkpoints.loading.read._READS", 1, 34, "lost"),
        ("segue.runlog.reader._PAUSES_SECONDS", (), 12, "lost"),
    ],
)
def test_a_world_shows_what_believing_the_first_read_costs(monkeypatch, changed, value, seed, kind):
    monkeypatch.setattr(changed, value)
    assert kind in {kind for kind, _ in World(seed, signer=None).run().wrong}
