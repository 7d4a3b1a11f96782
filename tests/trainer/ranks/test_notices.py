"""Notices and hints that only the leader of several ranks sees: all of them act on it at the same step."""

from __future__ import annotations

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history
from segue.testing.metadata import FakeAws, FakeGce
from tests.trainer.test_endings import once_training

LONG = {"recipe": "tests.recipes.ranked:noisy", "steps": 100_000, "checkpoints": {"every_steps": 100_000}}


def of_group(observer):
    """An observer of one process as one of a group."""
    return lambda group, log, plan: observer(0, log, plan)


@pytest.mark.matrix
def test_a_preemption_that_the_leader_sees_stops_all_ranks_at_one_step(ranks_fork_server, make_spec, open_log):
    spec = make_spec(**LONG, config={"pause_seconds": 0.01}, notices=None)
    runlog = open_log(spec)
    with FakeGce() as gce:
        preempt = of_group(once_training(lambda pid, attempt: gce.preempt()))
        report = ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=preempt, environment=gce.environment)
    assert (report.stop_reason, report.notice.kind, report.lost_steps) == (StopReason.NOTICE, "gce", 0)
    assert read_history(runlog).newest.manifest.step == report.to_step
    asked = {request.partition(" ")[2] for request in gce.requests}
    assert "/computeMetadata/v1/instance/preempted" in asked
    assert sum(request.endswith("/instance/id") for request in gce.requests) == 1  # Only the leader looks.


@pytest.mark.matrix
def test_a_notice_commits_the_save_whose_metric_is_being_computed(ranks_fork_server, make_spec, open_log, tmp_path):
    config = {"where": "evaluate", "at_step": 10, "once": str(tmp_path / "once")}
    spec = make_spec(recipe="tests.trainer.busy:build", config=config, notices=None, grace_seconds=120)
    runlog = open_log(spec)
    with FakeGce() as gce:
        announce = iter([gce.preempt])

        def observer(group, log, plan):
            if not (tmp_path / "once.reached").exists():
                return False
            next(announce, lambda: None)()
            if not read_history(log.reload()).checkpoints:
                return False
            for process in group.processes:
                process.kill()  # The evaluation goes on for an hour.
            return True

        ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=observer, environment=gce.environment)
    (checkpoint,) = read_history(runlog.reload()).checkpoints
    assert (checkpoint.manifest.step, checkpoint.manifest.metric) == (10, None)


@pytest.mark.matrix
def test_a_recommendation_that_the_leader_sees_saves_every_ranks_part(ranks_fork_server, make_spec, open_log):
    spec = make_spec(**LONG, config={"pause_seconds": 0.01}, notices=["aws"])
    runlog = open_log(spec)
    with FakeAws() as aws:
        stages = iter(
            [
                once_training(lambda pid, attempt: aws.rebalance()),
                lambda pid, log, plan: bool(read_history(log).checkpoints),
                lambda pid, log, plan: aws.preempt() is None,
            ]
        )
        now = [next(stages)]

        def observer(group, log, plan):
            if now[0](0, log, plan):
                now[0] = next(stages, None)
            return now[0] is None

        report = ranks_fork_server.run_attempt(runlog, spec, ranks=2, observer=observer, environment=aws.environment)
    first, last = (checkpoint.manifest.step for checkpoint in read_history(runlog).checkpoints)
    assert 0 < first < last == report.to_step
    assert report.notice.kind == "aws"
