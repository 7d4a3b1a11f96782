"""What a step of a real attempt leaves behind and calls: counted, not timed."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

import segue
from benchmarks.continuity.cost import measured_spec
from benchmarks.continuity.step.parts import PARTS, Stopwatch, cost_by_part, plain, witnessed
from benchmarks.continuity.step.stepwise import WITNESS_STEPS, StepKind, attempt_by_steps
from segue.continuity.witness import NORMS_EVERY_STEPS

PACKAGE = f"{Path(segue.__file__).parent}{os.sep}"
"""A clone may itself be called segue, and have torch in it."""
MOST_CALLS = 95
"""Of segue's own functions in a plain step, generators that go on included."""
CALLS_OF_A_LOOK, CALLS_OF_A_RECORD, CALLS_OF_A_COMMIT = 60, 12, 40
"""What a full look at the safe point, the record of a step there, and a commit to note, may add.

Looks come by time: more on a busy machine.
"""
NOTES_A_COMMIT = "policy/save_interval.py:save_done"
STEPS, COMMIT_EVERY = 76, 32
# No step begins an epoch after the first, whose order is drawn at once.
SPEC = measured_spec({"model": "flights", "samples": 4000}, steps=STEPS, commit_every=COMMIT_EVERY)


@pytest.fixture(scope="module")
def watched():
    """Of each step after the first: its kind, the cyclic garbage that it left, and its calls by file of segue.

    Calls of the function that notes a commit are apart.
    """
    found = []

    def visit(live, make):
        calls = Counter()

        def count(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                name = frame.f_code.co_filename.removeprefix(PACKAGE)
                function = f"{name}:{frame.f_code.co_name}"
                calls[function if function == NOTES_A_COMMIT else name] += 1

        gc.collect()
        gc.disable()
        sys.setprofile(count)
        try:
            kind = make()
        finally:
            sys.setprofile(None)
            gc.enable()
        found.append((kind, gc.collect(), calls))

    gc.collect()
    gc.freeze()  # What is there now need not be looked through at each step.
    try:
        attempt_by_steps(SPEC, visit)
    finally:
        gc.unfreeze()
    return found[1:]


@pytest.mark.matrix
def test_a_step_leaves_no_garbage_to_the_cyclic_collector(watched):
    # The thread that commits begins within a step that a save or a seal follows.
    kinds = (StepKind.PLAIN, StepKind.NORMS, StepKind.WITNESS)
    assert {kind: garbage for kind, garbage, _ in watched if garbage and kind in kinds} == {}


def test_a_plain_step_takes_no_fingerprint_and_calls_little(watched):
    plain_steps = [calls for kind, _, calls in watched if kind is StepKind.PLAIN]
    assert len(plain_steps) > STEPS / 3
    for calls in plain_steps:
        assert calls["continuity/fingerprints.py"] == calls["checkpoints/format/snapshot.py"] == 0
        assert calls["trainer/workloads/components.py"] == 0
    # A step may be the one that notes a commit, whenever the writer was ready.
    noting = [calls for calls in plain_steps if calls[NOTES_A_COMMIT]]
    assert len(noting) <= STEPS // COMMIT_EVERY
    for calls in plain_steps:
        looks = calls["trainer/safe_points.py"] > 1
        look = looks * CALLS_OF_A_LOOK + calls["curves/curve_rows.py"] * CALLS_OF_A_RECORD
        assert calls.total() <= MOST_CALLS + look + (CALLS_OF_A_COMMIT if calls[NOTES_A_COMMIT] else 0), calls


def test_each_kind_of_step_comes_as_often_as_it_should(watched):
    counts = Counter(kind for kind, _, _ in watched)
    assert counts[StepKind.LAST] == STEPS // 32
    assert counts[StepKind.WITNESS] == (WITNESS_STEPS - 1) * (STEPS // 32)
    assert counts[StepKind.SAVING] == STEPS // 32
    for kind, _, calls in watched:
        bears_witness = kind in (StepKind.WITNESS, StepKind.LAST)
        assert (calls["continuity/fingerprints.py"] > 0) == bears_witness


@pytest.mark.matrix
def test_the_parts_of_the_cost_are_those_that_a_step_has():
    found = cost_by_part(SPEC, skipped=2, commit_every=100)
    assert tuple(found) == PARTS
    for part in ("fingerprint of ids", "fingerprint of inputs", "witness rows"):
        assert found[part]["plain_microseconds"] < found[part]["witness_microseconds"], part
        assert found[part]["bytes"] > 0
    assert found["row of the curve"]["bytes"] > found["safe point"]["bytes"] == 0


def test_a_stopwatch_counts_a_part_within_another_once():
    watch = Stopwatch()
    inner = watch.timed("inner", lambda: sum(range(20_000)))
    watch.timed("outer", lambda: [inner() for _ in range(50)])()
    seconds = watch.restart()
    assert seconds["inner"] > 10 * seconds["outer"]
    assert not watch.seconds


def test_the_means_count_each_kind_by_how_often_it_comes():
    seconds = {StepKind.PLAIN: 1.0, StepKind.NORMS: 1.0 + NORMS_EVERY_STEPS, StepKind.WITNESS: 2.0, StepKind.LAST: 10.0}
    assert plain(seconds) == pytest.approx(2.0)
    assert witnessed(seconds) == pytest.approx(3.0)
