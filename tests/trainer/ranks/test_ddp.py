"""Spreading models: unsupported ways are refused by name, and changes during training are kept."""

from __future__ import annotations

import re

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history


@pytest.fixture
def attempt(ranks_fork_server, make_spec, open_log):
    """Runs an attempt of two ranks of a recipe; returns the report and the log."""

    def make(recipe, *, run_id=None, **config):
        fields = {"steps": 20, "checkpoints": {"every_steps": 10}, "config": config}
        run_id = run_id or ("disturbed" if config else "undisturbed")
        spec = make_spec(run_id=run_id, recipe=f"tests.recipes.spread:{recipe}", **fields)
        runlog = open_log(spec)
        return ranks_fork_server.run_attempt(runlog, spec, ranks=2), runlog

    return make


def final_state(runlog):
    newest = read_history(runlog.reload()).newest
    return read_checkpoint(runlog.store, run_id=runlog.run_id, manifest=newest.manifest).tensors


@pytest.mark.matrix
def test_ranks_whose_gradients_are_not_summed_are_stopped_at_the_first_step(attempt):
    report, runlog = attempt("bypassing")
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "RankDriftError")
    assert "not its .module" in report.failure.message
    assert read_history(runlog).checkpoints == ()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("recipe", "why"),
    [("tensor_parallel", "not tensor or pipeline"), ("wrapped_inside", "return the bare model")],
)
def test_a_model_that_is_spread_in_an_unsupported_way_is_refused_by_name(attempt, recipe, why):
    report, _ = attempt(recipe)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "RecipeError"), report.failure
    assert why in report.failure.message


@pytest.fixture
def resumed(ranks_fork_server, make_spec, open_log):
    """Stops a sharded run of two ranks at step 13 and resumes it; returns the report, the log and what it printed."""

    def make(recipe, *, between=lambda: None, **config):
        fields = {"steps": 20, "checkpoints": {"every_steps": 10}, "config": config | {"at": [1, 13, "notice"]}}
        # A layer that is not sharded counts as another setting.
        continuity = {"rehearsal": "off", "accept": ["setup.hyperparameters"]}
        spec = make_spec(recipe=f"tests.recipes.spread:{recipe}", continuity=continuity, **fields)
        runlog, printed = open_log(spec), []
        first = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
        assert first.stop_reason is StopReason.NOTICE, first.failure
        between()

        def observer(group, log, plan):
            printed.append(group.logs())
            return False

        report = ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=observer)
        assert report.stop_reason is StopReason.FINISHED, report.failure
        return runlog, printed[-1]

    return make


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", ["sharded_twice", pytest.param("sharded_once", marks=pytest.mark.matrix)])
def test_each_rank_reads_its_slices_once_and_the_resume_is_exact(attempt, resumed, recipe):
    whole, undisturbed = attempt(recipe)
    assert whole.stop_reason is StopReason.FINISHED, whole.failure
    runlog, printed = resumed(recipe)
    by_rank = [int(read) for read in re.findall(r"state restored .* bytes=(\d+)", printed)]
    stored = read_history(runlog).checkpoints[0].manifest.size_bytes
    assert len(by_rank) == 2
    assert max(by_rank) <= 0.55 * stored, "half of what is sharded, and the little that is not"
    assert "reading the whole state" not in printed
    assert read_history(runlog).attempts[-1].verdict.kind is VerdictKind.EXACT
    expected, found = final_state(undisturbed), final_state(runlog)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.matrix
def test_a_state_that_is_sharded_no_longer_in_part_is_read_whole(resumed, tmp_path):
    marker = tmp_path / "left-out"
    runlog, printed = resumed("shrinking", between=marker.touch, marker=str(marker))
    assert "reading the whole state" in printed
    assert read_history(runlog).attempts[-1].verdict.kind is not VerdictKind.BROKEN


@pytest.mark.matrix
def test_reentrant_checkpointing_of_shared_layers_is_refused_with_the_ways_out_and_these_work(attempt):
    report, _ = attempt("checkpointed", use_reentrant=True)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "RecipeError"), report.failure
    assert "DistributedDataParallel(model, static_graph=True)" in report.failure.message
    for way in ({"use_reentrant": False}, {"use_reentrant": True, "is_wrapped": True}):
        report, _ = attempt("checkpointed", run_id=f"way{len(way)}", **way)
        assert report.stop_reason is StopReason.FINISHED, report.failure


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", ["thawing", pytest.param("twice_updated", marks=pytest.mark.soak)])
def test_parameters_that_are_trained_later_or_again_are_restored(attempt, recipe):
    whole, undisturbed = attempt(recipe)
    assert whole.stop_reason is StopReason.FINISHED
    first, _ = attempt(recipe, at=[1, 13, "notice"])
    assert first.stop_reason is StopReason.NOTICE
    last, runlog = attempt(recipe, at=[1, 13, "notice"])
    assert last.stop_reason is StopReason.FINISHED
    assert read_history(runlog).attempts[-1].verdict.kind is VerdictKind.EXACT
    expected, found = final_state(undisturbed), final_state(runlog)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
