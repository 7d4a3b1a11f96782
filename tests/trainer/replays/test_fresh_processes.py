"""Fresh processes that replay: which kernels they have, and what becomes of them when a checkpoint is pruned."""

from __future__ import annotations

import signal

import pytest

from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.records import Capacity, SegmentPlan, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.rehearsal_main import copied, rehearse
from segue.trainer.replays.fresh import FreshProcesses, ReplayRequest, Replays
from tests.support.observers import stop_when_proven

RECIPE = "tests.continuity.noise.recipe:build"
CLOCK = SystemClock()


@pytest.fixture
def proven(fork_server, make_spec, open_log):
    """Trains a recipe of this kind until its newest checkpoint can be verified; returns what a replay needs."""

    def train(kind, **config):
        checkpoints = {"every_steps": 40, "every_seconds": None}
        # The test's own process rehearses, too, and other tests may have set its threads.
        threads = 1 if kind == "perturbed" else None
        fields = {"recipe": RECIPE, "steps": 100, "threads": threads, "checkpoints": checkpoints}
        spec = make_spec(config={"kind": kind, **config}, **fields)
        runlog = open_log(spec)
        fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
        plan = SegmentPlan(segment=0, attempt=2, capacity=Capacity.SPOT, deployment="test")
        return Assignment(spec=spec, plan=plan), runlog, read_history(runlog.reload()).newest

    return train


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "is_other"), [("index_put", True), ("without_kernel", True), ("own_threads", False)])
def test_a_recipe_with_kernels_that_are_not_deterministic_is_known_by_its_other_kernels(proven, kind, is_other):
    assignment, _, checkpoint = proven(kind)
    request = ReplayRequest(assignment=assignment, checkpoint=checkpoint.ref, steps=8)
    processes = FreshProcesses(request, lambda: True, CLOCK)
    usual = processes.replays(own=None).rows[0]
    assert len(usual) == 8
    assert processes.has_other_kernels(usual) is is_other


@pytest.mark.matrix
def test_a_rehearsal_measures_noise_from_a_copy_after_the_checkpoint_was_pruned(proven):
    assignment, runlog, checkpoint = proven("perturbed", eps=1e-6)
    keys = [f"{runlog.run_id}/{shard.key}" for shard in checkpoint.manifest.shards]
    with copied(runlog.store, run_id=runlog.run_id, manifest=checkpoint.manifest) as copy:
        runlog.store.delete(keys)
        found = rehearse(assignment, runlog, checkpoint, clock=CLOCK, copy=copy)
    assert (found.verdict.kind, found.is_complete) == (VerdictKind.EQUIVALENT, True), found.verdict.sentence
    assert found.verdict.noise


@pytest.mark.matrix
def test_a_wait_that_ends_has_no_answer_and_leaves_no_process(proven):
    assignment, _, checkpoint = proven("own_threads")
    request = ReplayRequest(assignment=assignment, checkpoint=checkpoint.ref, steps=8)
    processes = FreshProcesses(request, lambda: False, CLOCK)
    assert processes.replays(own=None) == Replays((), is_complete=False)
    assert processes.setup() == {}
    assert not processes.has_other_kernels(())
