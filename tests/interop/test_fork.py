"""A run that begins with another run's checkpoint trains on from it as that run would have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.curves.frame import curve
from segue.errors import ForkMismatchError, RunBegunError, RunNotFoundError, SpecError, UnknownStepError
from segue.interop.fork import fork_run
from segue.records import StopReason, VerdictKind
from segue.reports.page import lineage_rows
from segue.reports.tables import checkpoint_rows, segment_rows
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import open_store
from tests.support.final_states import state_at_end

pytestmark = pytest.mark.usefixtures("one_thread")

OWN_LOOP = str(Path(__file__).parents[1] / "programs/own_loop.py")
KEPT = {"every_steps": 1000, "keep": 9}
"""Attempts commit at their ends, and only there: which steps are committed does not hang on how fast a save is."""


@pytest.fixture
def source(fork_server, make_spec, open_log):
    """A run with checkpoints at 20 and 40, its end."""
    spec = make_spec(run_id="source", checkpoints=KEPT)
    runlog = open_log(spec)
    for goal in (20, 40):
        fork_server.run_attempt(runlog, spec.model_copy(update={"steps": goal}))
    return spec


def history_of(spec):
    return read_history(RunLog(open_store(spec.store), spec.run_id))


def trees_of(spec):
    log = RunLog(open_store(spec.store), spec.run_id)
    snapshot = read_checkpoint(log.store, run_id=spec.run_id, manifest=read_history(log).newest.manifest)
    return {name: decode_tree(skeleton, snapshot.tensors) for name, skeleton in snapshot.skeletons.items()}


@pytest.mark.matrix
def test_a_fork_with_a_later_goal_ends_like_the_run_that_had_that_goal_from_the_start(
    fork_server, make_spec, open_log, source
):
    whole, fork = make_spec(run_id="whole", steps=60), make_spec(run_id="fork", steps=60)
    fork_server.run_to_the_end(open_log(whole), whole)
    report = fork_run(fork, "source", step=20)
    assert (report.step, report.is_new, report.fork.name) == (20, True, "source@20")
    assert history_of(fork).committed_step == 20
    fork_server.run_to_the_end(open_log(fork), fork)
    history = history_of(fork)
    assert state_at_end(history) == state_at_end(history_of(whole))
    assert history.attempts[-1].verdict.kind is VerdictKind.UNVERIFIED
    assert list(curve(open_log(fork))["step"]) == list(range(21, 61))
    assert [(row["pool"], row["steps"]) for row in segment_rows(history)] == [("import", "20-20"), ("spot", "20-60")]
    assert checkpoint_rows(history)[0]["reason"] == "forked from source@20"
    assert lineage_rows(history)[0][-1]["resumed from"] == "forked from source@20"
    assert history.decisions[0].reason == "fork of source@20: a checkpoint of another run"


@pytest.mark.matrix
def test_the_end_of_the_source_is_not_the_end_of_the_fork(fork_server, make_spec, open_log, source):
    fork = make_spec(run_id="fork", steps=60)
    assert fork_run(fork, "source").step == 40
    report = fork_server.run_attempt(open_log(fork), fork)
    assert (report.stop_reason, report.from_step, report.to_step) == (StopReason.FINISHED, 40, 60)


@pytest.mark.matrix
def test_what_is_reset_begins_as_built_and_all_else_is_the_sources(fork_server, make_spec, open_log, source):
    fork = make_spec(run_id="fork", seed=5)
    fork_run(fork, "source", reset=["optimizer", "position"])
    first, before = trees_of(fork), trees_of(source)
    assert first.keys() == {"model", "modes", "extra.average", "progress"}
    assert first["progress"] == {"step": 0, "samples_seen": 0}
    assert all(torch.equal(tensor, before["model"]["state"][name]) for name, tensor in first["model"]["state"].items())
    assert fork_server.run_attempt(open_log(fork), fork.model_copy(update={"steps": 20})).to_step == 20
    fork_server.run_to_the_end(open_log(fork), fork)
    kinds = [attempt.verdict.kind for attempt in history_of(fork).attempts[1:]]
    assert kinds == [VerdictKind.UNVERIFIED, VerdictKind.UNVERIFIED]  # Neither begins where another attempt went on.
    assert trees_of(fork)["optimizer"]["state"][0]["step"].item() == 40
    assert checkpoint_rows(history_of(fork))[0]["reason"] == "forked from source@40, reset: optimizer, position"


@pytest.mark.matrix
def test_a_program_goes_on_from_another_runs_checkpoint(fork_server, make_spec, open_log):
    def program(run_id, steps):
        command = ["python", OWN_LOOP, "--steps", "400"]
        return make_spec(run_id=run_id, recipe=None, program={"command": command}, steps=steps)

    whole, source, fork = program("whole", 60), program("source", 40), program("fork", 60)
    for spec in (whole, source):
        assert fork_server.run_attempt(open_log(spec), spec).stop_reason is StopReason.FINISHED
    fork_run(fork, "source")
    assert fork_server.run_attempt(open_log(fork), fork).from_step == 40
    assert state_at_end(history_of(fork)) == state_at_end(history_of(whole))
    fresh = program("fresh", 60)
    fork_run(fresh, "source", reset=["optimizer", "best"])
    assert trees_of(fresh).keys() & {"optimizer", "best"} == set()
    assert fork_server.run_attempt(open_log(fresh), fresh).stop_reason is StopReason.FINISHED


def test_the_same_fork_again_changes_nothing_and_another_is_refused(make_spec, source):
    fork = make_spec(run_id="fork", steps=60)
    fork_run(fork, "source", step=20)
    slots = history_of(fork).next_slot
    for step in (20, None):
        again = fork_run(fork, "source", step=step)
        assert (again.is_new, again.fork.step, history_of(fork).next_slot) == (False, 20, slots)
    for step, reset in ((40, ()), (20, ("optimizer",))):
        with pytest.raises(RunBegunError, match="run fork has already started"):
            fork_run(fork, "source", step=step, reset=reset)
    with pytest.raises(RunBegunError, match="run source has already started"):
        fork_run(source, "source")


def test_a_run_that_began_as_a_fork_needs_the_other_run_no_more(make_spec, source):
    fork = make_spec(run_id="fork", steps=60)
    fork_run(fork, "source")
    shutil.rmtree(Path(source.store.url) / "source")
    assert not fork_run(fork, "source").is_new


@pytest.mark.matrix
def test_an_early_stop_goes_on_counting_in_a_fork(fork_server, make_spec, open_log):
    config = {"evaluate_every": 5, "patience": 2}
    common = {"recipe": "tests.recipes.rich:rich", "config": config}
    source, fork = make_spec(run_id="source", steps=10, **common), make_spec(run_id="fork", steps=40, **common)
    fork_server.run_attempt(open_log(source), source)
    assert trees_of(source)["early_stop"]["worse"] == 1
    assert fork_run(fork, "source").as_built == ()
    report = fork_server.run_attempt(open_log(fork), fork)
    assert (report.stop_reason, report.from_step, report.to_step) == (StopReason.FINISHED, 10, 15)
    fresh = make_spec(run_id="fresh", steps=40, **common)
    fork_run(fresh, "source", reset=["position"])
    assert fork_server.run_attempt(open_log(fresh), fresh).to_step == 15


def test_a_wrong_request_is_refused_before_the_run_exists(make_spec, source):
    fork = make_spec(run_id="fork", steps=60)
    for error, spec, asked in (
        (RunNotFoundError, fork, {"source": "nobody"}),
        (UnknownStepError, fork, {"source": "source", "step": 33}),
        (SpecError, make_spec(run_id="fork", steps=40), {"source": "source"}),
        (SpecError, fork, {"source": "source", "reset": ["momentum"]}),
        (ForkMismatchError, make_spec(run_id="fork", steps=60, config={"width": 4}), {"source": "source"}),
    ):
        with pytest.raises(error) as refused:
            fork_run(spec, **asked)
        assert history_of(fork).next_slot == 0
    assert refused.value.component == "model"
    assert str(refused.value).endswith("or leave the component out: --reset model.")


@pytest.mark.matrix
def test_state_that_only_one_of_the_two_has_is_named(make_spec, source, fork_server, open_log):
    rich = make_spec(run_id="rich", steps=60, recipe="tests.recipes.forked:with_counter")
    assert fork_run(rich, "source").as_built == ("extra.counter",)
    assert fork_server.run_attempt(open_log(rich), rich).stop_reason is StopReason.FINISHED
    assert trees_of(rich)["extra.counter"] == {"count": 20}
    poor = make_spec(run_id="poor", steps=90)
    with pytest.raises(ForkMismatchError, match=r"extra\.counter was not restored"):
        fork_run(poor, "rich")
    assert fork_run(poor, "rich", reset=["extra.counter"]).step == 60
