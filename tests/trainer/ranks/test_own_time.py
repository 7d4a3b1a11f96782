"""The own time of a rank has its own work and none of its waits, and shows which rank all others wait for."""

from __future__ import annotations

import multiprocessing as mp
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import Variable

from segue.policy.machines.machine_evidence import seen_machines
from segue.records import Machine, StopReason
from segue.reports.machine_views import machine_facts
from segue.runlog.history import read_history
from segue.testing.clock import FakeClock
from segue.trainer.ranks.own_time import OwnTime
from tests.support.forked_trainers import next_plan

WORK_SECONDS, BRAKE_SECONDS = 0.02, 0.02
NODES = {"SEGUE_KUBERNETES_NODE": "node-{rank}"}


class _Layer(torch.autograd.Function):
    """Takes 3 s backward, by the clock that it is given."""

    @staticmethod
    def forward(ctx, weight, clock):
        ctx.clock = clock
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.sleep(3.0)
        return gradient, None


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_own_time_has_the_work_of_every_backward_pass_and_none_of_the_waits(parts, layers):
    clock, model = FakeClock(datetime(2026, 1, 1, tzinfo=UTC)), nn.ParameterList(torch.ones(1) for _ in range(layers))
    own = OwnTime(torch.device("cpu"), clock=clock)
    own.follow(nn.Linear(1, 1))
    own.follow(model)
    first = next(iter(model))
    # DistributedDataParallel waits as this callback does, which it queues after the last gradient.
    wait = partial(Variable._execution_engine.queue_callback, partial(clock.sleep, 100.0))
    first.register_post_accumulate_grad_hook(lambda _: wait())
    assert own.take() == 0.0
    own.begin()
    clock.sleep(1.0)  # For the batch.
    own.pause()
    clock.sleep(100.0)  # For the buffers of rank 0.
    own.resume()
    for part in range(parts):
        if part:
            own.resume()
        sum(_Layer.apply(weight, clock) for weight in model).sum().backward()
    clock.sleep(100.0)  # For the optimizer, the numbers of the step and the vote.
    assert own.take() == 1.0 + 3.0 * layers * parts
    assert own.take() == 0.0, "each step is taken once"


def test_a_model_without_trained_parameters_is_not_measured():
    OwnTime(torch.device("cpu"), clock=FakeClock(datetime(2026, 1, 1, tzinfo=UTC))).follow(nn.ReLU())


def _turn() -> None:
    while True:
        pass


@pytest.fixture
def paced(ranks_fork_server, make_spec, open_log, tmp_path):
    """Runs an attempt of two ranks on two nodes, in which the ranks sleep at each step, and rank 1 also brakes."""
    brake = tmp_path / "brake"

    def make(*, brake_seconds=BRAKE_SECONDS, environment=NODES, **fields):
        if brake_seconds:
            brake.touch()
        config = {"brake": str(brake), "brake_rank": "1", "brake_seconds": brake_seconds, "pause_seconds": WORK_SECONDS}
        fields = {"steps": 400, "segment": {"steps": 60}} | fields
        spec = make_spec(recipe="tests.recipes.paced:build", config=config, **fields)
        runlog = open_log(spec)
        return ranks_fork_server.run_attempt(runlog, spec, ranks=2, environment=environment), runlog, spec

    return make


@pytest.mark.matrix
def test_a_slow_rank_is_named_with_its_node_and_only_this_node_is_left_at_the_planned_end(paced):
    report, runlog, spec = paced()
    assert (report.stop_reason, report.leaves_machine) == (StopReason.BOUND, True)
    (slow,) = report.slow_ranks
    assert (slow.rank, slow.machine) == (1, Machine(kind="kubernetes", name="node-1"))
    assert 1.15 < slow.slowness < 3.0
    assert next_plan(runlog, spec).avoided_nodes == ("node-1",)
    history = read_history(runlog.reload())
    assert "rank 1 took" in history.decisions[-1].reason
    facts = machine_facts(seen_machines(history, log_id=runlog.log_id), now=datetime.now(UTC))
    assert [(each["machine"], each["avoided_until"] is None) for each in facts] == [("node-1", False), ("node-0", True)]


@pytest.mark.matrix
def test_a_slow_rank_on_a_machine_that_cannot_be_avoided_is_named_but_not_left(paced):
    report, runlog, spec = paced(environment={})
    assert (report.leaves_machine, [each.rank for each in report.slow_ranks]) == (False, [1])
    assert report.slow_ranks[0].machine.kind == "host"
    assert next_plan(runlog, spec).avoided_nodes == ()


@pytest.mark.matrix
def test_a_slow_rank_is_left_at_once_if_the_run_would_miss_its_deadline_with_it(paced):
    policy = {"name": "on_demand_only", "changeover_seconds": 1.0}
    seconds = 3000 * (WORK_SECONDS + 0.1)
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    report, *_ = paced(brake_seconds=0.15, steps=3000, segment={"steps": 1500}, deadline=deadline, policy=policy)
    assert (report.stop_reason, report.leaves_machine) == (StopReason.BOUND, True)
    assert report.to_step < 150


@pytest.mark.matrix
@pytest.mark.parametrize("busy", [0, 2])
def test_ranks_of_equal_speed_are_not_named_even_beside_other_work(paced, busy):
    others = [mp.get_context("spawn").Process(target=_turn, daemon=True) for _ in range(busy)]
    for each in others:
        each.start()
    try:
        report, *_ = paced(brake_seconds=0.0, segment={"steps": 150})
    finally:
        for each in others:
            each.kill()
            each.join()
    assert (report.stop_reason, report.to_step) == (StopReason.BOUND, 150)
    assert (report.slow_ranks, report.leaves_machine) == ((), False)
