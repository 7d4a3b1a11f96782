"""Nothing that only looks ends an attempt: what cannot be looked at is passed over, and what is beside it is found."""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import UserDict, UserList, deque

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.continuity.blind.cases import Axis, Case
from benchmarks.continuity.blind.trial import run_sound
from benchmarks.continuity.scripts.base import mse, net, recipe
from segue.continuity.object_walk import Inspection
from segue.continuity.untracked.marks import mark_of
from tests.continuity.test_untracked import recipe_with, trained

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Raised(Exception):
    def __str__(self):
        raise LookupError


def raises(*_, **__):
    raise Raised


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.inner, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.seen.add_(1)
        self.calls += 1
        return self.inner(x)


def named(name, *bases, **members):
    return type(name, bases or (object,), members)


def dead_proxy():
    held = named("Held")()
    proxy = weakref.proxy(held)
    del held
    return proxy


def without_tables():
    module = nn.Linear(1, 1)
    for name in ("_parameters", "_modules", "_buffers"):
        del vars(module)[name]
    return module


def emptied_partial():
    held = functools.partial(print)
    held.__dict__["broken"] = named("Broken", __class__=property(raises))()
    return held


class StrangeTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise Raised


class StrangeMeta(type):
    def __getattribute__(cls, name):
        if name in ("state_dict", "load_state_dict", "__dict__"):
            raise Raised
        return super().__getattribute__(name)


class Strange(metaclass=StrangeMeta):
    pass


OBJECTS = {
    "scripted module": lambda: torch.jit.script(Counting()),
    "traced module": lambda: torch.jit.trace(nn.Linear(4, 4), torch.zeros(1, 4)),
    "scripted function": lambda: torch.jit.script(lambda_source),
    "module without its tables": without_tables,
    "__class__ raises": named("Raises", __class__=property(raises)),
    "__dict__ raises": named("Raises", __dict__=property(raises)),
    "__getattr__ raises": named("Raises", __getattr__=raises),
    "__getattribute__ raises": named("Raises", __getattribute__=raises),
    "__len__ of a list raises": lambda: named("Raises", list, __len__=raises)([1]),
    "__iter__ of a list raises": lambda: named("Raises", list, __iter__=raises)([1]),
    "__iter__ of a set raises": lambda: named("Raises", set, __iter__=raises)([1]),
    "__getitem__ of a tuple raises": lambda: named("Raises", tuple, __getitem__=raises)((1, [2])),
    "items of a dict raise": lambda: named("Raises", dict, items=raises, values=raises, __iter__=raises)(a=1),
    "keys of a dict raise": lambda: {named("Key", __hash__=lambda self: 1, __eq__=raises, __repr__=raises)(): [1]},
    "__iter__ of a deque raises": lambda: named("Raises", deque, __iter__=raises, __len__=raises)([1]),
    "number that raises": lambda: named("Raises", int, __eq__=raises, __repr__=raises, __hash__=None)(3),
    "text that raises": lambda: named("Raises", str, __eq__=raises, __contains__=raises, __len__=raises)("a/b"),
    "tensor class that raises": lambda: torch.zeros(2).as_subclass(StrangeTensor),
    "array class that raises": lambda: np.zeros(2).view(named("Raises", np.ndarray, reshape=raises, __len__=raises)),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "tensor of torch's meta device": lambda: torch.zeros(2, device="meta"),
    "metaclass that raises": Strange,
    "class with a metaclass that raises": lambda: Strange,
    "dead weak proxy": dead_proxy,
    "partial with a broken attribute": emptied_partial,
    "UserDict that raises": named("Raises", UserDict, __iter__=raises, __len__=raises),
    "UserList without data": lambda: UserList.__new__(UserList),
    "slot that raises": named("Raises", __slots__=("a",), __getattr__=raises),
    "state_dict that raises": named("Raises", state_dict=raises, load_state_dict=raises),
    "empty cell": lambda: types.FunctionType((lambda: print).__code__, {}),
    "flags": lambda: enum.Flag("Strange", "A B").A,
}


def lambda_source(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("name", OBJECTS)
def test_what_cannot_be_looked_at_is_passed_over_and_the_counters_beside_it_are_found(name):
    model, held, calls = nn.Linear(4, 1), [OBJECTS[name]()], [0]
    vars(model)["strange"] = OBJECTS[name]()
    holder = types.SimpleNamespace(strange=OBJECTS[name](), updates=0)

    def step(_):
        calls[0] += len((held,))
        holder.updates += 1

    said = " ".join(finding.sentence for finding in trained(recipe_with(step, model=model), steps=1))
    assert "calls" in said
    assert "updates" in said


def scripted(config):
    """A recipe with a scripted loss and a traced layer."""
    criterion = torch.jit.script(Counting())
    layer = torch.jit.trace(nn.Linear(8, 8), torch.zeros(1, 8))
    model = nn.Sequential(layer, net())

    def loss(model, batch):
        return mse(model, batch) + 0.0 * criterion(torch.zeros(1, 4)).sum()

    return recipe(model, loss, extra={"criterion": criterion})


@pytest.mark.matrix
def test_a_run_with_a_scripted_loss_and_a_traced_layer_is_resumed_exactly():
    case = Case("scripted", Axis.SOUND, f"{__name__}:scripted", is_sound=True)
    assert [(each.verdict, each.problem) for each in run_sound(case, rounds=1)] == [("exact", "")]


@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_a_place_among_settings_and_a_mark(name):
    found = Inspection()
    found.add("strange", OBJECTS[name]())
    found.add("beside", 3)
    assert found.plain["beside"] == 3
    mark_of(OBJECTS[name]())


def test_the_state_of_a_scripted_module_in_a_loss_is_named():
    criterion = torch.jit.script(Counting())
    found = trained(recipe_with(lambda model: criterion(torch.zeros(1, 4))))
    said = " ".join(f"{finding.sentence} {finding.fix}" for finding in found)
    assert "criterion (RecursiveScriptModule): calls was 0, now 3; seen changed" in said
