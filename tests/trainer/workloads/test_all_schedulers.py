"""Every scheduler of torch comes back from a checkpoint, also one that is made of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.recipe import Recipe
from segue.trainer.workloads.components import OptimizerState, StatefulComponent
from segue.user_objects import takes_metric


class Decay:
    """A factor as an object, which torch saves with the scheduler."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 0.9**step


def sequential(optimizer):
    phases = [schedulers.ConstantLR(optimizer, total_iters=2), schedulers.OneCycleLR(optimizer, 0.1, total_steps=30)]
    return schedulers.SequentialLR(optimizer, phases, milestones=[5])


def chained(optimizer):
    return schedulers.ChainedScheduler([schedulers.ExponentialLR(optimizer, 0.9), schedulers.StepLR(optimizer, 3)])


MAKE = {
    "ConstantLR": lambda o: schedulers.ConstantLR(o, total_iters=8),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=12),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=4),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=4, scale_fn=Decay(), scale_mode="iterations"),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, Decay()),
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=12),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [3, 9]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.95),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=30),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=12),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1, factor=0.7),
    "StepLR": lambda o: schedulers.StepLR(o, 3),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
}


def made(name):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, MAKE[name](optimizer)


def rates(optimizer, scheduler, steps):
    found = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*([1.0] if takes_metric(scheduler) else []))
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("name", MAKE)
def test_its_state_can_be_stored_and_gives_the_same_rates_again(name):
    optimizer, scheduler = made(name)
    rates(optimizer, scheduler, 7)
    tensors = {}
    parts = {"optimizer": OptimizerState(optimizer), "scheduler": StatefulComponent(scheduler)}
    trees = {part: encode_tree(each.capture(), path=part, tensors=tensors) for part, each in parts.items()}
    expected = rates(optimizer, scheduler, 12)
    optimizer, scheduler = made(name)
    OptimizerState(optimizer).restore(decode_tree(trees["optimizer"], tensors))
    StatefulComponent(scheduler).restore(decode_tree(trees["scheduler"], tensors))
    assert rates(optimizer, scheduler, 12) == expected


def test_the_list_has_all_schedulers_of_torch():
    found = {n for n, each in vars(schedulers).items() if isinstance(each, type) and hasattr(each, "load_state_dict")}
    assert {name for name in found if not name.startswith("_")} - {"LRScheduler", "Optimizer"} == MAKE.keys()


@pytest.mark.parametrize("name", MAKE)
def test_only_one_of_them_is_stepped_by_the_metric(name):
    optimizer, scheduler = made(name)
    recipe = Recipe(model=nn.Linear(1, 1), optimizer=optimizer, data=[], loss=print, scheduler=scheduler)
    assert bool(recipe.by_metric) is (name == "ReduceLROnPlateau")
