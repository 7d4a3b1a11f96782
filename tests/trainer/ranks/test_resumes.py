"""Runs that resume on the same or another number of ranks: nothing is lost, and changes are reported."""

from __future__ import annotations

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.records import StopReason, VerdictKind
from segue.runlog.entries import SealEntry
from segue.runlog.history import read_history
from tests.support.single_rank import even_here

STEPS = 40


def stopping(spec, rank, step):
    """The same run, with a notice for one rank after that step."""
    return spec.model_copy(update={"config": spec.config | {"at": [rank, step, "notice"]}})


def final(runlog):
    newest = read_history(runlog).newest
    assert newest.manifest.step == STEPS
    return read_checkpoint(runlog.store, run_id=runlog.run_id, manifest=newest.manifest).tensors


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.matrix
def test_a_notice_at_one_rank_stops_all_at_that_step_and_the_resume_is_exact(ranks_fork_server, make_spec, open_log):
    fields = {"recipe": "tests.recipes.ranked:noisy", "steps": STEPS, "checkpoints": {"every_steps": 1000}}
    undisturbed = make_spec(run_id="undisturbed", **fields)
    reference = open_log(undisturbed)
    ranks_fork_server.run_to_the_end(reference, undisturbed, ranks=3)

    spec = make_spec(run_id="stopped", **fields)
    runlog = open_log(spec)
    report = ranks_fork_server.run_attempt(runlog, stopping(spec, 1, 13), ranks=3)
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, "sigterm")
    assert (report.to_step, report.checkpoint.step, report.lost_steps) == (13, 13, 0)
    newest = read_history(runlog).newest
    assert [row.step for row in newest.rows] == list(range(14, 22))
    assert newest.manifest.environment.world_size == 3

    report = ranks_fork_server.run_attempt(runlog, spec, ranks=3)
    assert (report.stop_reason, report.from_step) == (StopReason.FINISHED, 13)
    verdict = read_history(runlog).attempts[-1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)
    assert {"rng.torch", "rng.torch@1", "rng.torch@2"} <= newest.manifest.components.keys()
    assert same_bits(final(runlog), final(reference))
    assert read_history(runlog).newest.manifest.components == read_history(reference).newest.manifest.components


def witnessed(runlog):
    seals = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, SealEntry)]
    return {row.step: row.batch_fingerprint for seal in seals for row in seal.rows}


def in_segments(ranks_fork_server, runlog, spec, worlds):
    """Train with one number of ranks after another, each stopped by a notice at its last rank; returns the verdicts."""
    for number, ranks in enumerate(worlds):
        until = STEPS * (number + 1) // len(worlds)
        held = spec if until == STEPS else stopping(spec, ranks - 1, until)
        report = ranks_fork_server.run_attempt(runlog, held, ranks=ranks)
        assert report.to_step == report.checkpoint.step == until, report.note
        assert report.stop_reason is (StopReason.FINISHED if until == STEPS else StopReason.NOTICE)
    return [attempt.verdict for attempt in read_history(runlog).attempts[1:]]


@pytest.mark.matrix
@pytest.mark.parametrize("sharded", [pytest.param(False, marks=pytest.mark.soak), True], ids=["replicated", "sharded"])
def test_a_run_that_resumes_with_any_number_of_ranks_equals_one_with_a_single_rank(
    ranks_fork_server, make_spec, open_log, sharded
):
    """Batches of 10, and of 6 at the end of an epoch, on 4, 2, 1, 3 and 3 ranks."""
    spec = make_spec(
        recipe="tests.recipes.ranked:even",
        steps=STEPS,
        config={"sharded": sharded},
        checkpoints={"every_steps": 1000, "keep": 9},
    )
    runlog = open_log(spec)
    verdicts = in_segments(ranks_fork_server, runlog, spec, (4, 2, 1, 3, 3))
    assert [(verdict.kind, verdict.rows_compared, verdict.environment_changes) for verdict in verdicts] == [
        (VerdictKind.EQUIVALENT, 8, ("world_size",)),
        (VerdictKind.EQUIVALENT, 8, ("world_size",)),
        (VerdictKind.EQUIVALENT, 8, ("world_size",)),
        (VerdictKind.EXACT, 8, ()),
    ]
    alone = even_here(STEPS)
    seen = witnessed(runlog)
    assert len(seen) == 32
    assert seen == {step: alone.batch_fingerprints[step] for step in seen}
    found = final(runlog)
    for name, parameter in alone.parameters.items():
        assert torch.allclose(found[f"model.state.{name}"], parameter, rtol=0, atol=1e-6)


@pytest.mark.matrix
def test_a_ranks_own_random_draws_are_never_called_broken_when_the_number_of_ranks_changes(
    ranks_fork_server, make_spec, open_log
):
    spec = make_spec(recipe="tests.recipes.ranked:noisy", steps=STEPS, checkpoints={"every_steps": 1000, "keep": 9})
    runlog = open_log(spec)
    verdicts = in_segments(ranks_fork_server, runlog, spec, (2, 3, 1, 2))
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.UNVERIFIED] * 3
    assert {finding.channel for verdict in verdicts for finding in verdict.findings} <= {"loss", "grad_norm"}
    assert all(verdict.rows_compared == 8 for verdict in verdicts)


@pytest.mark.parametrize(
    "sharded", [pytest.param(False, marks=pytest.mark.matrix), True], ids=["replicated", "sharded"]
)
def test_state_that_all_ranks_hold_is_stored_once_and_split_over_all_of_them(
    ranks_fork_server, make_spec, open_log, sharded
):
    images = {}
    for ranks in (1, 3):
        spec = make_spec(
            run_id=f"on-{ranks}",
            recipe="tests.recipes.ranked:even",
            config={"sharded": sharded, "width": 3000},
            steps=2,
        )
        runlog = open_log(spec)
        ranks_fork_server.run_attempt(runlog, spec, ranks=ranks)
        shards = read_history(runlog).newest.manifest.shards
        images[ranks] = [shard.size_bytes for shard in shards if shard.key.endswith(".safetensors")]
    (alone,) = images[1]
    overhead = 3 * (4096 + 8 * 2**10)  # A page for each header, and each rank's own random streams.
    assert alone <= sum(images[3]) <= alone + overhead
    assert len(images[3]) == 3
    assert max(images[3]) < 0.45 * alone


@pytest.mark.parametrize(
    "sharded", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["replicated", "sharded"]
)
def test_ranks_that_get_no_sample_of_a_short_batch_do_not_change_the_result(
    ranks_fork_server, make_spec, open_log, sharded
):
    """Of 96 samples in batches of 19 the last batch has one, for three ranks."""
    config = {"sharded": sharded, "batch_size": 19}
    spec = make_spec(recipe="tests.recipes.ranked:even", steps=STEPS, config=config)
    runlog = open_log(spec)
    ranks_fork_server.run_attempt(runlog, spec, ranks=3)
    found, alone = final(runlog), even_here(STEPS, batch_size=19)
    for name, parameter in alone.parameters.items():
        assert torch.allclose(found[f"model.state.{name}"], parameter, rtol=0, atol=1e-6)
