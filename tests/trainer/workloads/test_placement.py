"""What takes part in a step is moved; what the user has placed stays. The meta device stands for an accelerator."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from segue.testing.recipes import tiny
from segue.trainer.workloads.placement import is_placed, place, to_device

META, CPU = torch.device("meta"), torch.device("cpu")


class Weighted(nn.Module):
    """A loss with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = nn.MSELoss()
        self.register_buffer("weights", torch.ones(1))

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return self.criterion(model(x), y) * self.weights.sum()


def devices_of(module):
    return {tensor.device.type for tensor in [*module.parameters(), *module.buffers()]}


def a_recipe(optimizer=torch.optim.Adagrad):
    made = tiny({})
    average = AveragedModel(made.model)
    head = nn.Linear(1, 1)
    extra = {"average": average, "head": optimizer(head.parameters(), lr=0.1), "counts": {"steps": 0}}
    return replace(made, optimizer=optimizer(made.model.parameters(), lr=0.1), loss=Weighted(), extra=extra)


@pytest.fixture
def swaps_parameters():
    """Parameters that are moved to the meta device stay those of the optimizer, as on an accelerator."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swaps_parameters")
def test_model_loss_averages_and_the_state_that_optimizers_begin_with_are_moved():
    recipe = a_recipe()
    place(recipe, META)
    moved = (recipe.model, recipe.loss, recipe.extra["average"])
    assert [devices_of(module) for module in moved] == [{"meta"}] * 3
    slots = [slot for state in recipe.optimizer.state.values() for slot in state.items()]
    assert {value.device.type for name, value in slots if name != "step"} == {"meta"}
    assert {value.device.type for name, value in slots if name == "step"} == {"cpu"}, "as torch keeps it"


def test_a_processor_has_everything_already():
    recipe = a_recipe()
    place(recipe, CPU)
    assert devices_of(recipe.model) == {"cpu"}


def test_what_the_user_has_placed_is_left_alone():
    made = tiny({})
    split = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1, device="meta"))
    mapped = nn.Linear(2, 2)
    mapped.hf_device_map = {"": 0}
    recipe = replace(made, model=nn.Linear(2, 2), optimizer=made.optimizer, extra={"split": split, "mapped": mapped})
    place(recipe, META)
    assert devices_of(split) == {"meta"} or not is_placed(split)
    assert devices_of(mapped) == {"cpu"}


@dataclass
class Pair:
    x: torch.Tensor
    names: list[str]
    size: int = field(init=False, default=2)


class Graph:
    """As libraries for graphs make them: it moves itself."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Graph:
        return Graph(self.x.to(device))


Named = namedtuple("Named", "x y")


@pytest.mark.parametrize(
    ("batch", "first"),
    [
        (torch.zeros(2), lambda b: b),
        ([torch.zeros(2), "text"], lambda b: b[0]),
        ((torch.zeros(2), 3), lambda b: b[0]),
        (Named(torch.zeros(2), 1), lambda b: b.x),
        ({"x": torch.zeros(2), "n": None}, lambda b: b["x"]),
        (OrderedDict(x=torch.zeros(2)), lambda b: b["x"]),
        (defaultdict(list, x=torch.zeros(2)), lambda b: b["x"]),
        (Graph(torch.zeros(2)), lambda b: b.x),
        ([Graph(torch.zeros(2))], lambda b: b[0].x),
        (Pair(torch.zeros(2), ["a"]), lambda b: b.x),
    ],
)
def test_a_batch_of_any_kind_is_moved_and_keeps_its_type(batch, first):
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert first(moved).device.type == "meta"
    assert to_device(batch, CPU) is batch
    if isinstance(moved, defaultdict):
        assert moved["new"] == []
    if isinstance(moved, Pair):
        assert (moved.names, moved.size) == (["a"], 2)
