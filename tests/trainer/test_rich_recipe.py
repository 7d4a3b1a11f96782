"""Recipes with accumulation, parts of a loss, evaluations, epochs and an early stop: resumed like any other."""

from __future__ import annotations

import logging
import math
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue
from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.recipe import EarlyStop, Recipe
from segue.recipe_check import built_recipe
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.workloads.schedulers import refuse_short_schedules, warn_of_epochs
from segue.trainer.workloads.steps.step import begin_step
from tests.recipes.rich import BATCH, SAMPLES, rich
from tests.support.final_states import state_at_end
from tests.support.observers import stop_when_proven


@pytest.fixture
def make_rich(make_spec):
    def make(run_id="rich", steps=1000, **config):
        return make_spec(
            run_id=run_id,
            recipe="tests.recipes.rich:rich",
            steps=steps,
            config=config,
            continuity={"rehearsal": "off", "witness_steps": 2},
        )

    return make


CONFIGS = [
    pytest.param({"accumulate": 3, "epochs": 8}, marks=pytest.mark.matrix),
    pytest.param({"evaluate_every": 4, "epochs": 4}, marks=pytest.mark.matrix),
    {"evaluate_every": "epoch", "patience": 3},
    pytest.param({"weighted": True, "accumulate": 2, "epochs": 8}, marks=pytest.mark.matrix),
    pytest.param({"compile": "aot_eager", "ema": True, "epochs": 4}, marks=pytest.mark.matrix),
]


@pytest.mark.matrix
@pytest.mark.parametrize("config", CONFIGS, ids=" ".join)
def test_a_killed_run_ends_as_an_undisturbed_one(fork_server, make_rich, open_log, config):
    whole = make_rich(run_id="whole", **config)
    whole_log = open_log(whole)
    fork_server.run_attempt(whole_log, whole)
    hangs = make_rich(**config, hang_at=13)
    runlog = open_log(hangs)
    assert (
        fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL)).stop_reason is StopReason.LOST
    )
    report = fork_server.run_attempt(runlog, make_rich(**config))
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    history, undisturbed = read_history(runlog.reload()), read_history(whole_log.reload())
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT
    assert history.attempts[1].verdict.rows_compared == 2
    assert history.attempts[1].verdict.not_compared == ()
    assert history.finish_reason == undisturbed.finish_reason is not None
    assert state_at_end(history) == state_at_end(undisturbed)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("config", "steps", "reason"),
    [
        ({"epochs": 3}, 24, "all 3 epochs are done"),
        ({"epochs": 3, "accumulate": 3}, 9, "all 3 epochs are done"),
        ({"evaluate_every": 5, "patience": 2}, 15, "the metric was no better than"),
    ],
)
def test_a_recipe_can_finish_its_run_before_the_goal(fork_server, make_rich, open_log, config, steps, reason):
    spec = make_rich(**config)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, steps)
    history = read_history(runlog.reload())
    assert history.is_finished(spec)
    assert history.finish_reason.startswith(reason)


@pytest.mark.matrix
def test_parts_of_the_loss_and_evaluations_are_in_the_curve(fork_server, make_rich, open_log):
    spec = make_rich(epochs=2, evaluate_every="epoch")
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    frame = segue.curve(runlog.reload())
    total = frame["metric.error"] + frame["metric.size"]
    assert (total - frame["loss"]).abs().max() < 1e-6
    evaluated = frame[frame["metric.evaluate"].notna()]
    assert evaluated["step"].tolist() == [8, 16]
    rates = frame.groupby("epoch")["lr"].agg(["min", "max"])
    assert rates["min"].tolist() == rates["max"].tolist() == [0.01, 0.005]


def test_accumulated_batches_make_the_step_of_one_large_batch():
    def stepped(*, accumulate):
        seed_all(3)
        inputs = torch.randn(8, 4)
        model = nn.Linear(4, 1)
        recipe = Recipe(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data=DataLoader(TensorDataset(inputs), batch_size=8 // accumulate),
            loss=lambda model, batch: model(batch[0]).square().mean(),
        )
        result = begin_step(recipe, list(recipe.data), step=1).read()
        return result.outcome.loss, model.weight.detach()

    whole, split = stepped(accumulate=1), stepped(accumulate=4)
    assert math.isclose(whole[0], split[0], rel_tol=1e-5)
    assert torch.allclose(whole[1], split[1], rtol=1e-5)


def test_functions_of_the_user_are_told_epochs_and_metrics():
    recipe = built_recipe(rich, {})
    assert recipe.gives_metrics
    begin_step(recipe, [next(iter(recipe.data))], step=1).read()
    assert len(recipe.extra["seen"].values) == 1
    assert SAMPLES % BATCH  # The last batch of an epoch is short, or the tests above show less.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"accumulate": 0}, "accumulate is an int: not a number of batches"),
        ({"epochs": -1}, "epochs is an int: not a number of epochs"),
        ({"evaluate_every": 5, "evaluate": None}, "there is no evaluate to call"),
        ({"evaluate_every": "week"}, "neither a number of steps nor 'epoch'"),
        ({"scheduler_every": "day"}, "neither 'step' nor 'epoch'"),
        ({"early_stop": 3}, "early_stop is an int: not a segue.EarlyStop"),
        ({"early_stop": EarlyStop(3)}, "it needs evaluate_every, which is not set"),
    ],
)
def test_wrong_fields_are_refused_before_anything_is_trained(fields, said):
    def build(config):
        recipe = rich({})
        for name, value in fields.items():
            setattr(recipe, name, value)
        return recipe

    with pytest.raises(RecipeError) as refused:
        built_recipe(build, {})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("scheduler", "is_warned"),
    [
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 1), True),
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 500), False),
        (lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [30, 60]), True),
        (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), True),
        (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9999), False),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10), False),
    ],
)
def test_a_scheduler_that_looks_like_one_of_epochs_is_warned_of(caplog, scheduler, is_warned):
    caplog.set_level(logging.WARNING)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    warn_of_epochs(scheduler(optimizer), steps_per_epoch=100)
    assert ("scheduler_every" in caplog.text) is is_warned


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)


def constant(optimizer):
    return torch.optim.lr_scheduler.ConstantLR(optimizer, total_iters=2)


SHORT = [
    (one_cycle, 10),
    (lambda o: torch.optim.lr_scheduler.ChainedScheduler([constant(o), one_cycle(o)]), 10),
    (lambda o: torch.optim.lr_scheduler.SequentialLR(o, [constant(o), one_cycle(o)], [4]), 14),
    (lambda o: torch.optim.lr_scheduler.SequentialLR(o, [one_cycle(o), constant(o)], [12]), 10),
]


@pytest.mark.parametrize(("scheduler", "most"), SHORT)
def test_a_schedule_that_ends_before_the_run_is_refused_at_the_number_of_steps_at_which_torch_raises(scheduler, most):
    def recipe():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Recipe(model=model, optimizer=optimizer, data=[], loss=print, scheduler=scheduler(optimizer))

    stepped = recipe()
    for _ in range(most):
        stepped.optimizer.step()
        stepped.scheduler.step()
    stepped.optimizer.step()
    with pytest.raises(ValueError, match="total"):
        stepped.scheduler.step()
    refuse_short_schedules(recipe(), name="mine:build", steps=most, steps_per_epoch=1)
    with pytest.raises(RecipeError, match=r"recipe 'mine:build': its scheduler is a OneCycleLR of total_steps=10, but"):
        refuse_short_schedules(recipe(), name="mine:build", steps=most + 1, steps_per_epoch=1)


@pytest.mark.parametrize(
    ("fields", "steps", "reached"),
    [
        ({}, 11, 11),
        ({"scheduler_every": "epoch"}, 80, None),
        ({"scheduler_every": "epoch"}, 88, 11),
        ({"epochs": 1}, 1000, None),
        ({"epochs": 2}, 1000, 16),
    ],
)
def test_a_schedule_is_compared_with_what_the_run_counts(fields, steps, reached):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recipe = Recipe(model=model, optimizer=optimizer, data=[], loss=print, scheduler=one_cycle(optimizer), **fields)
    if reached is None:
        refuse_short_schedules(recipe, name="mine:build", steps=steps, steps_per_epoch=8)
        return
    with pytest.raises(RecipeError, match=f"the run steps it {reached} times.*Fix: give it total_steps={reached}"):
        refuse_short_schedules(recipe, name="mine:build", steps=steps, steps_per_epoch=8)
