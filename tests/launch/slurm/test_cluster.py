"""A real Slurm on this machine: what a run comes to when its jobs are preempted, cancelled, limited or lost."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

import segue
from segue.controller.local_run import run_here
from segue.records import Machine, StopReason
from segue.runlog.history import read_history
from tests.launch.slurm.conftest import LONG, record_unfit

pytestmark = pytest.mark.matrix


def running_job(cluster):
    """The id of the one job in `spot` that runs."""
    return cluster.until(lambda: cluster.run("squeue", "--noheader", "--states=R", "--partition=spot", "--format=%i"))


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def assert_nothing_is_lost(report, *kinds):
    assert (report.stop_reason, report.lost_steps) == (StopReason.NOTICE, 0), report
    assert report.notice.kind in kinds
    assert report.checkpoint.step == report.to_step > 0


def test_a_run_trains_to_its_goal_in_a_job(cluster, make_slurm_spec, open_log):
    spec, lines = make_slurm_spec(), []
    runlog = open_log(spec)
    decision = run_here(spec, runlog, on_line=lambda line: lines.append(line.text))
    assert decision.action == "finished", "\n".join(lines)
    assert any("attempt ended reason=finished step=40" in line for line in lines)
    assert len(read_history(runlog).attempts) == 1


def test_a_preempted_job_commits_its_last_step(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec(**LONG))
    cluster.until(attempt.step)
    cluster.hold_all(seconds=1)
    assert_nothing_is_lost(attempt.report(), "sigterm")


def test_a_job_avoids_the_node_that_failed_the_check_and_the_claim_names_the_node_of_the_job(
    cluster, make_slurm_spec, start, open_log
):
    spec = make_slurm_spec(**LONG)
    free = cluster.run("sinfo", "--noheader", "--Node", "--partition=spot", "--format=%N").split()
    record_unfit(open_log(spec), Machine(kind="slurm", name=free[0]))
    attempt = start(spec)
    cluster.until(attempt.step)
    shown = cluster.run("scontrol", "show", "job", running_job(cluster))
    assert f"ExcNodeList={free[0]} " in f"{shown} ".replace("\n", " ")
    (attempted,) = read_history(attempt.runlog.reload()).attempts
    assert [(each.kind, each.name) for each in attempted.claim.machines] == [("slurm", free[1])]


@pytest.mark.soak
def test_a_job_runs_on_while_its_node_is_drained_and_one_that_a_person_cancels_commits_its_last_step(
    cluster, make_slurm_spec, start
):
    attempt = start(make_slurm_spec(**LONG))
    step = cluster.until(attempt.step)
    cluster.drain()
    cluster.until(lambda: attempt.step() > step + 20)
    cluster.resume()
    cluster.run("scancel", running_job(cluster))
    assert_nothing_is_lost(attempt.report(), "sigterm")


@pytest.mark.soak
def test_a_job_hears_of_its_time_limit_ahead_and_commits_its_last_step(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec(**LONG, grace_seconds=50.0))
    cluster.until(attempt.step)
    cluster.run("scontrol", "update", f"jobid={running_job(cluster)}", "timelimit=1")
    assert_nothing_is_lost(attempt.report(), "sigusr1")


def test_a_run_loses_nothing_while_the_controller_is_away(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec(steps=200, config={"pause_seconds": 0.02}))
    cluster.until(attempt.step)
    cluster.stop_controller()
    cluster.until(lambda: attempt.step() > 100)
    # It may end meanwhile: its job then counts as running until the controller has heard of that.
    cluster.until(lambda: read_history(attempt.runlog.reload()).committed_step == 200)
    cluster.start_controller()
    report = attempt.report()
    assert (report.stop_reason, report.to_step, report.lost_steps) == (StopReason.FINISHED, 200, 0)


@pytest.mark.soak
def test_a_notice_that_is_given_while_the_controller_is_away_arrives_when_it_is_back(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec(**LONG, grace_seconds=90.0))
    step = cluster.until(attempt.step)
    cluster.kill_controller()
    attempt.relay.give()
    step = attempt.step()
    cluster.until(lambda: attempt.step() > step + 50)
    cluster.start_controller()
    assert_nothing_is_lost(attempt.report(), "sigterm")


@pytest.mark.soak
def test_a_job_whose_node_is_lost_is_reported_as_lost_and_fenced_by_the_next_one(cluster, make_slurm_spec, start):
    spec = make_slurm_spec(**LONG)
    first = start(spec)
    cluster.until(first.step)
    job = running_job(cluster)
    node = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    cluster.kill_node(node)
    try:
        report = first.report()
        assert (report.stop_reason, report.note) == (
            StopReason.LOST,
            f"its Slurm job {job} ended as NODE_FAIL without a report",
        )
        trainer = psutil.Process(read_history(first.runlog.reload()).attempts[0].claim.trainer_pid)
        assert trainer.is_running(), "Slurm has ended the processes of a node that it cannot reach"
        second = start(spec)
        cluster.until(second.step)
        cluster.until(lambda: not is_alive(trainer))
        lost, following = read_history(first.runlog.reload()).attempts
        assert max(commit.slot for commit in lost.commits) < min(commit.slot for commit in following.commits)
    finally:
        cluster.start_node(node)
        cluster.until(lambda: "down" not in cluster.run("sinfo", "--noheader", "--format=%T"))


@pytest.mark.soak
def test_a_job_trains_on_to_its_end_when_its_segment_has_died(cluster, make_slurm_spec, open_log):
    spec = make_slurm_spec()
    runlog = open_log(spec)
    segment = subprocess.Popen([sys.executable, "-c", SEGMENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        segment.stdin.write(spec.model_dump_json().encode())
        segment.stdin.close()
        segment.stdout.readline()
    finally:
        segment.kill()
        segment.wait()
        segment.stdout.close()
    cluster.until(lambda: read_history(runlog.reload()).last_reports())
    assert read_history(runlog).last_reports()[0].stop_reason is StopReason.FINISHED
    assert read_history(runlog).committed_step == 40


SEGMENT = """
import sys, time
from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.launch.registry import launch
from segue.spec import RunSpec

spec = RunSpec.model_validate_json(sys.stdin.buffer.read())
plan = decide_next(open_run(spec, clock=SystemClock()), spec, clock=SystemClock()).plan
trainer = launch(Assignment(spec=spec, plan=plan))
while trainer.job_id is None:
    time.sleep(0.05)
print("submitted", flush=True)
time.sleep(600)
"""


def test_two_nodes_train_on_the_samples_on_which_one_machine_trains(cluster, make_slurm_spec, make_spec, open_log):
    fields = {"recipe": "tests.recipes.ranked:even", "ranks": 2, "steps": 20}
    lines, losses = [], []
    there = make_slurm_spec({"nodes": 2}, **fields)
    here = make_spec(**fields | {"run_id": "here", "ranks": 1})
    for spec in (there, here):
        runlog = open_log(spec)
        decision = run_here(spec, runlog, on_line=lambda line: lines.append(line.text))
        assert decision.action == "finished", "\n".join(lines)
        losses.append(list(segue.open_run(spec.run_id, spec.store).curve()["loss"]))
    assert read_history(open_log(there)).attempts[0].claim.environment.world_size == 2
    assert any("rank1 |" in line for line in lines)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.soak
def test_a_notice_reaches_the_ranks_on_every_node(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec({"nodes": 2}, recipe="tests.recipes.ranked:noisy", ranks=2, steps=100_000))
    cluster.until(attempt.step)
    attempt.relay.give()
    assert_nothing_is_lost(attempt.report(), "sigterm")


@pytest.mark.soak
def test_a_wait_in_the_queue_is_no_slow_boot_and_a_notice_takes_the_job_out_of_it(cluster, make_slurm_spec, start):
    cluster.hold_all(seconds=600)
    attempt = start(make_slurm_spec(**LONG))
    cluster.until(lambda: "Resources" in cluster.run("squeue", "--noheader", "--partition=spot", "--format=%r"))
    cluster.until(lambda: list(attempt.runlog.store.list_objects("tiny/queue/")))
    attempt.relay.give()
    report = attempt.report()
    assert (report.stop_reason, report.got_capacity) == (StopReason.LOST, False)
    assert report.note.endswith("ended as CANCELLED")


@pytest.mark.soak
def test_a_killed_job_ends_at_once_and_without_a_report_of_its_own(cluster, make_slurm_spec, start):
    attempt = start(make_slurm_spec(**LONG))
    cluster.until(attempt.step)
    attempt.relay._trainer.kill()
    report = attempt.report()
    assert report.stop_reason is StopReason.LOST
    assert "Slurm job" in report.note
