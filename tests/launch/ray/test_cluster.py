"""A real Ray on this machine: what a run comes to when nodes are drained, killed or cut off, or the head restarts."""

from __future__ import annotations

import psutil
import pytest
import torch

import segue
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.controller.local_run import run_here
from segue.records import Machine, StopReason, VerdictKind
from segue.runlog.entries import SealEntry
from segue.runlog.history import read_history
from tests.launch.ray.conftest import LONG
from tests.launch.ray.local_cluster import until
from tests.launch.slurm.conftest import record_unfit
from tests.support.single_rank import even_here

pytestmark = pytest.mark.matrix


def trainers_on(cluster, node):
    """The processes of the ranks on a node."""
    found = cluster.raylet(node).children(recursive=True)
    return [process for process in found if "segue.trainer.main" in " ".join(process.cmdline()[:4])]


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def world_sizes(runlog):
    return [attempt.claim.environment.world_size for attempt in read_history(runlog.reload()).attempts]


def witnessed(runlog):
    seals = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, SealEntry)]
    return {row.step: row.batch_fingerprint for seal in seals for row in seal.rows}


def test_two_nodes_train_on_the_samples_on_which_one_machine_trains(cluster, make_ray_spec, make_spec, open_log):
    for _ in range(2):
        cluster.add()
    fields = {"steps": 20}
    there = make_ray_spec(cluster, **fields)
    here = make_spec(recipe=there.recipe, run_id="here", **fields)
    losses, lines = [], []
    for spec in (there, here):
        runlog = open_log(spec)
        decision = run_here(spec, runlog, on_line=lambda line: lines.append(line.text))
        assert decision.action == "finished", "\n".join(lines)
        losses.append(list(segue.open_run(spec.run_id, spec.store).curve()["loss"]))
    assert world_sizes(open_log(there)) == [2]
    assert any("rank1 |" in line for line in lines)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_ranks_avoid_a_node_that_failed_the_check_if_there_is_another_and_the_claim_names_their_node(
    cluster, make_ray_spec, open_log
):
    bad = cluster.add()
    spec = make_ray_spec(cluster, ranks=1, steps=20)
    runlog = open_log(spec)
    record_unfit(runlog, Machine(kind="ray", name=bad))
    good = cluster.add()
    assert run_here(spec, runlog, on_line=print).action == "finished"
    (attempt,) = read_history(runlog.reload()).attempts
    assert [(each.kind, each.name) for each in attempt.claim.machines] == [("ray", good)]


@pytest.mark.soak
def test_a_run_goes_on_with_the_ranks_that_there_is_room_for_on_the_same_samples(
    cluster, make_ray_spec, start, open_log
):
    """4 ranks on 3 nodes, of which one is killed in mid-step: 2 ranks; with another node there are 3."""
    big, *_ = (cluster.add(cpus=2), cluster.add(), cluster.add())
    spec = make_ray_spec(
        cluster,
        {"min_ranks": 2},
        ranks=4,
        steps=80,
        config={"pause_seconds": 0.1},
        checkpoints={"every_steps": 20, "keep": 50},
    )
    first = start(spec)
    until(lambda: first.step() >= 29)  # The steps after the checkpoint by which the next resume is verified are stored.
    cluster.kill(big)
    report = first.report()
    assert (report.stop_reason, report.got_capacity) == (StopReason.LOST, True)
    second = start(spec)
    until(lambda: second.step() >= 45)
    second.relay.give()
    assert second.report().stop_reason is StopReason.NOTICE
    cluster.add()
    assert start(spec).report().stop_reason is StopReason.FINISHED

    runlog = open_log(spec)
    history = read_history(runlog)
    assert world_sizes(runlog) == [4, 2, 3]
    assert [(each.verdict.kind, each.verdict.environment_changes) for each in history.attempts[1:]] == [
        (VerdictKind.EQUIVALENT, ("world_size",)),
        (VerdictKind.EQUIVALENT, ("world_size",)),
    ]
    alone, seen = even_here(80), witnessed(runlog)
    assert len(seen) >= 24
    assert seen == {step: alone.batch_fingerprints[step] for step in seen}
    found = read_checkpoint(runlog.store, run_id=spec.run_id, manifest=history.newest.manifest).tensors
    for name, parameter in alone.parameters.items():
        assert torch.allclose(found[f"model.state.{name}"], parameter, rtol=0, atol=1e-5)


@pytest.mark.soak
def test_a_node_that_is_drained_is_a_notice_for_all_ranks(cluster, make_ray_spec, start):
    nodes = [cluster.add(), cluster.add()]
    attempt = start(make_ray_spec(cluster, **LONG))
    until(attempt.step)
    cluster.drain(nodes[1], seconds=25)
    report = attempt.report()
    assert (report.stop_reason, report.notice.kind, report.lost_steps) == (StopReason.NOTICE, "sigterm", 0)
    assert report.checkpoint.step == report.to_step > 0


def test_ranks_of_a_lost_raylet_train_on_and_are_fenced_by_the_next_attempt(cluster, make_ray_spec, start):
    node = cluster.add()
    spec = make_ray_spec(cluster, ranks=1, **LONG)
    first = start(spec)
    until(first.step)
    (trainer,) = trainers_on(cluster, node)
    cluster.raylet(node).kill()
    report = first.report()
    assert report.stop_reason is StopReason.LOST
    assert "Ray actor" in report.note
    assert is_alive(trainer), "Ray has ended the processes of a node whose raylet is gone"
    cluster.add()
    second = start(spec)
    until(second.step)
    until(lambda: not is_alive(trainer))
    until(lambda: read_history(first.runlog.reload()).attempts[-1].commits)
    lost, following = read_history(first.runlog).attempts
    assert max((commit.slot for commit in lost.commits), default=0) < min(commit.slot for commit in following.commits)


@pytest.mark.soak
def test_an_attempt_ends_when_the_head_restarts_and_the_run_goes_on_until_it_is_killed(cluster, make_ray_spec, start):
    node = cluster.add()
    spec = make_ray_spec(cluster, ranks=1, **LONG)
    first = start(spec)
    until(first.step)
    (trainer,) = trainers_on(cluster, node)
    cluster.restart_head()
    assert first.report().stop_reason is StopReason.LOST
    cluster.renew()
    cluster.add()
    second = start(spec)
    until(second.step)
    until(lambda: not is_alive(trainer))
    second.relay._trainer.kill()
    report = second.report()
    assert (report.stop_reason, report.note) == (
        StopReason.LOST,
        "its trainer on the Ray cluster was killed by signal 9 without a report",
    )


@pytest.mark.soak
def test_a_wait_for_room_is_no_slow_boot_and_a_notice_ends_it(cluster, make_ray_spec, start):
    node = cluster.add()
    cluster.add()
    attempt = start(make_ray_spec(cluster, **LONG))
    until(attempt.step)
    cluster.kill(node)
    assert attempt.report().stop_reason is StopReason.LOST
    waiting = start(attempt.spec)
    until(lambda: list(attempt.runlog.store.list_objects("tiny/queue/")))
    trainer = until(lambda: waiting.relay._trainer)
    until(lambda: "2 bundles of 1 CPU on nodes with the resource spot" in (trainer.why_waiting() or ""))
    waiting.relay.give()
    report = waiting.report()
    assert (report.stop_reason, report.got_capacity) == (StopReason.LOST, False)
    assert report.note == "it was ended before the Ray cluster had room for it"
