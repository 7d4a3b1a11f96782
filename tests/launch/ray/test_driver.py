"""What ranks do whose driver is gone: they lose no step, whether the cluster works or not."""

from __future__ import annotations

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history
from tests.launch.ray.conftest import LONG
from tests.launch.ray.local_cluster import until
from tests.launch.ray.test_cluster import is_alive, trainers_on

pytestmark = pytest.mark.matrix
ONLY_AT_THE_END = {"checkpoints": {"every_steps": 100_000}}


def report_of_orphans(attempt, trainers):
    """What the ranks themselves report, once they have ended."""
    until(lambda: not any(is_alive(trainer) for trainer in trainers))
    (report,) = read_history(attempt.runlog.reload()).last_reports()
    return report


def has_lost_nothing(report):
    outcome = (report.stop_reason, report.notice and report.notice.kind, report.lost_steps)
    assert outcome == (StopReason.NOTICE, "orphaned", 0)
    assert report.checkpoint.step == report.to_step > 0


@pytest.fixture
def renewed(cluster):
    """A cluster whose head may be restarted: another one takes its place after the test."""
    yield cluster
    cluster.renew()


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_whose_driver_is_killed_commit_their_last_step(cluster, make_ray_spec, start, ranks):
    node = cluster.add(cpus=2)
    attempt = start(make_ray_spec(cluster, ranks=ranks, **ONLY_AT_THE_END, **LONG))
    until(attempt.step)
    trainers = trainers_on(cluster, node)
    assert len(trainers) >= ranks
    attempt.relay._trainer._child.process.kill()
    has_lost_nothing(report_of_orphans(attempt, trainers))


@pytest.mark.soak
def test_ranks_that_no_attempt_follows_commit_their_last_step_a_minute_after_the_head_restarted(
    renewed, make_ray_spec, start
):
    node = renewed.add()
    attempt = start(make_ray_spec(renewed, ranks=1, **ONLY_AT_THE_END, **LONG))
    until(attempt.step)
    trainers = trainers_on(renewed, node)
    renewed.restart_head()
    assert attempt.report().stop_reason is StopReason.LOST
    assert all(is_alive(trainer) for trainer in trainers)
    has_lost_nothing(report_of_orphans(attempt, trainers))
