"""Registered values without a state_dict: restored in place, so that closures and aliases see what was restored."""

from __future__ import annotations

import contextvars
import enum
import itertools
import json
import random
import threading
import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from segue import Variables
from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.continuity.live_tree import put, tree_of
from segue.continuity.untracked.marks import mark_of
from segue.errors import RecipeError, SessionError, UnsupportedStateError
from segue.recipe_check import built_recipe
from segue.trainer.programs.tracked import components_of_object
from segue.trainer.workloads.values import RestoredValues, component_of_value
from tests.continuity.test_hostile_objects import hostile

LEVEL = 0
CURRENT = contextvars.ContextVar("CURRENT", default=0)
Point = namedtuple("Point", "x y")


class Phase(enum.Enum):
    WARM, HOT = "warm", "hot"


@dataclass(frozen=True)
class Transition:
    reward: float
    state: torch.Tensor


@dataclass(slots=True)
class Meter:
    total: float = 0.0
    by_class: dict[int, list[float]] = field(default_factory=dict)


class Agent:
    """Holds a module, a stream, collections and code."""

    def __init__(self):
        self.target, self.noise = nn.Linear(2, 1), np.random.default_rng(1)
        self.seen, self.phase, self.device = [0], Phase.WARM, torch.device("cpu")
        self.act = lambda x: self.target(x) + 1

    def learn(self):
        self.seen.append(len(self.seen))
        self.phase, self.steps = Phase.HOT, 7
        self.noise.random()
        nn.init.ones_(self.target.weight)


def shown(value):
    """Everything of a value, to be compared."""
    if isinstance(value, (pd.DataFrame, pd.Series)):
        return value.to_dict(), [*map(str, value.dtypes)] if isinstance(value, pd.DataFrame) else str(value.dtype)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist(), str(value.dtype)
    if isinstance(value, (np.random.Generator, random.Random)):
        return value.random()
    if isinstance(value, torch.Generator):
        return torch.rand(3, generator=value).tolist()
    if isinstance(value, nn.Module):
        return {name: tensor.tolist() for name, tensor in value.state_dict().items()}
    if isinstance(value, Agent):
        return {name: shown(held) for name, held in vars(value).items() if name != "act"}
    if isinstance(value, (list, deque)):
        return type(value).__name__, [shown(each) for each in value]
    if isinstance(value, (dict, Counter)):
        return type(value).__name__, [(key, shown(each)) for key, each in value.items()]
    return repr(value)


def saved(value):
    """What a checkpoint of a registered value gives back."""
    tensors = {}
    skeleton = encode_tree(component_of_value(value, path="extra.x").capture(), path="extra.x", tensors=tensors)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return decode_tree(json.loads(json.dumps(skeleton)), copies)


def changed(value, change):
    change(value)
    return value


KINDS = {
    "list": (lambda: [1, [2]], lambda v: v[1].append(3), lambda v: v[1]),
    "dict of a list and an array": (
        lambda: {"list": [0], "array": np.zeros(2)},
        lambda v: (v["list"].append(1), v["array"].__iadd__(1)),
        lambda v: v["array"],
    ),
    "dict by tuples": (dict, lambda v: v.update({(1, "a"): 2.0, None: [1]}), None),
    "deque": (lambda: deque([0], maxlen=2), lambda v: v.extend((1, 2, 3)), None),
    "deque of data classes": (lambda: deque(maxlen=9), lambda v: v.append(Transition(1.0, torch.ones(2))), None),
    "list of named tuples": (list, lambda v: v.append(Point(1, torch.ones(1))), None),
    "Counter": (Counter, lambda v: v.update("aab"), None),
    "Counter of pairs": (Counter, lambda v: v.update([(1, 2), (1, 2)]), None),
    "defaultdict of lists": (lambda: defaultdict(list), lambda v: v["new"].append(1), None),
    "defaultdict of Counters": (lambda: defaultdict(Counter), lambda v: v["new"].update("ab"), None),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a"), None),
    "set": (lambda: {1, 2}, lambda v: v.add(2.5), None),
    "dict of a frozenset": (dict, lambda v: v.update(done=frozenset({1, 2})), None),
    "bytearray": (lambda: bytearray(3), lambda v: v.__setitem__(0, 255), None),
    "array.array": (lambda: array("d", [0.5]), lambda v: v.append(2.5), None),
    "array": (lambda: np.zeros((2, 2)), lambda v: v.__iadd__(1), None),
    "tensor": (lambda: torch.zeros(3), lambda v: v.add_(2), None),
    "NumPy scalar in a dict": (dict, lambda v: v.update(best=np.float32(1.5)), None),
    "complex number in a dict": (dict, lambda v: v.update(root=1 + 2j), None),
    "enumeration in a dict": (lambda: {"phase": Phase.WARM}, lambda v: v.update(phase=Phase.HOT), None),
    "table": (
        lambda: pd.DataFrame({"loss": [1.0]}),
        lambda v: (v.__setitem__("word", ["a"]), v.__setitem__("at", pd.to_datetime(["2020-01-01"]))),
        None,
    ),
    "table that grows": (lambda: pd.DataFrame({"loss": [1.0]}), lambda v: v.loc.__setitem__(5, [2.0]), None),
    "column": (lambda: pd.Series([1, 2], name="n"), lambda v: v.__setitem__(0, 7), None),
    "data class with slots": (Meter, lambda v: (setattr(v, "total", 2.5), v.by_class.update({1: [0.5]})), None),
    "namespace": (lambda: types.SimpleNamespace(n=0), lambda v: setattr(v, "n", 3), None),
    "object with a module and a stream": (Agent, Agent.learn, lambda v: v.seen),
    "torch.Generator": (lambda: torch.Generator().manual_seed(1), lambda v: torch.rand(5, generator=v), None),
    "numpy Generator": (lambda: np.random.default_rng(1), lambda v: v.random(5), None),
    "random.Random": (lambda: random.Random(1), lambda v: v.gauss(0, 1), None),
    "count": (itertools.count, lambda v: [next(v) for _ in range(5)], None),
    "cycle in its first pass": (lambda: itertools.cycle("abcd"), lambda v: [next(v) for _ in range(3)], None),
    "cycle in a later pass": (lambda: itertools.cycle("abcd"), lambda v: [next(v) for _ in range(11)], None),
    "enumerate": (lambda: enumerate("abcdef"), lambda v: [next(v) for _ in range(2)], None),
    "iterator of a list": (lambda: iter([*range(9)]), lambda v: [next(v) for _ in range(4)], None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_registered_value_is_restored_in_place(kind):
    make, change, alias = KINDS[kind]
    before, live = changed(make(), change), make()
    held = alias(live) if alias is not None else live
    tree = saved(before)
    component_of_value(live, path="extra.x").restore(tree)
    assert held is (alias(live) if alias is not None else live)
    if hasattr(live, "__next__"):
        assert next(live) == next(before)
    else:
        assert shown(live) == shown(before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_can_track_it(kind):
    assert components_of_object("x", KINDS[kind][0]()).keys() == {"x"}


def test_tensors_that_training_has_made_come_back_on_their_device():
    before, fresh = deque([torch.ones(2), torch.ones(3, device="meta")]), deque()
    state = {"extra.x": component_of_value(before, path="extra.x")}
    recorded = RestoredValues(state).capture()
    assert recorded["devices"] == {"extra.x": {"extra.x.1": "meta"}}
    fresh.extend(torch.ones(n) for n in (2, 3))  # As restored from a checkpoint, whose tensors are on the CPU.
    RestoredValues({"extra.x": component_of_value(fresh, path="extra.x")}).restore(recorded)
    assert [tensor.device.type for tensor in fresh] == ["cpu", "meta"]


def counted():
    calls, mean = 0, torch.zeros(1)

    def count(seen=[0], *, weight=1.0):  # noqa: B006 - what is tested
        nonlocal calls, mean
        global LEVEL
        calls, mean, LEVEL = calls + 1, mean + 1, LEVEL + 1
        count.total += 2
        seen.append(calls)
        return calls, mean.item(), LEVEL, count.total, [*seen], weight

    count.total = 0
    return count


def test_variables_of_a_function_are_restored_wherever_it_has_them(monkeypatch):
    monkeypatch.setitem(globals(), "LEVEL", 0)
    names = ("calls", "mean", "LEVEL", "total", "seen", "weight")
    first, second = counted(), counted()
    first(), first()
    first.__kwdefaults__["weight"] = 0.5
    tree = saved(Variables(first, *names))
    monkeypatch.setitem(globals(), "LEVEL", 0)
    component_of_value(Variables(second, *names), path="extra.x").restore(tree)
    assert second() == (3, 3.0, 3, 6, [0, 1, 2, 3], 0.5)


def test_variables_of_classes_modules_objects_threads_contexts_and_namespaces_are_restored():
    class Held:
        total = 1

    module, local, namespace = types.ModuleType("held"), threading.local(), {"best": 1.0, "other": 0}
    module.level, local.weight = 1, 1.0
    holders = [(Held, "total"), (module, "level"), (local, "weight"), (namespace, "best")]
    trees = [saved(Variables(holder, name)) for holder, name in holders]
    token = CURRENT.set(5)
    context = saved(CURRENT)
    CURRENT.reset(token)
    Held.total, module.level, local.weight, namespace["best"] = 9, 9, 9, 9
    for (holder, name), tree in zip(holders, trees, strict=True):
        component_of_value(Variables(holder, name), path="extra.x").restore(tree)
    component_of_value(CURRENT, path="extra.x").restore(context)
    assert (Held.total, module.level, local.weight, namespace, CURRENT.get()) == (
        1,
        1,
        1.0,
        {"best": 1.0, "other": 0},
        5,
    )
    CURRENT.set(0)


def test_an_attribute_that_comes_in_the_first_step_can_be_registered_before():
    model = nn.Linear(1, 1)
    tree = saved(Variables(model, "hidden"))
    assert tree == {}
    model.hidden = torch.ones(2)
    tree, fresh = saved(Variables(model, "hidden")), nn.Linear(1, 1)
    component_of_value(Variables(fresh, "hidden"), path="extra.x").restore(tree)
    assert fresh.hidden.tolist() == [1.0, 1.0]


def test_variables_that_a_function_cannot_have_are_refused():
    with pytest.raises(SessionError, match=r"name 'cals', which its holder lacks.*Fix: .*segue\.Variables"):
        Variables(counted(), "cals")
    with pytest.raises(SessionError, match="got no name"):
        Variables(counted())


def loops():
    found = [0]
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: {"lock": threading.Lock()}, "extra.x.lock"),
        (lambda: types.SimpleNamespace(items=[(n for n in ())]), "extra.x.items.0"),
        (lambda: {Agent(): 1}, "extra.x"),
        (lambda: {Transition(1.0, torch.ones(1)).reward, Phase.HOT}, "extra.x"),
        (loops, "extra.x.1.1.1"),
    ],
)
def test_what_no_checkpoint_can_hold_is_refused_by_its_path_before_the_first_step(make, path):
    with pytest.raises(UnsupportedStateError) as refused:
        component_of_value(make(), path="extra.x")
    assert refused.value.path.startswith(path)
    assert refused.value.fix


@pytest.mark.parametrize("value", [3, "text", (1, 2), None, len, Agent, frozenset({1})])
def test_what_cannot_be_restored_in_place_is_refused_with_the_variable_as_the_fix(value):
    def build(config):
        recipe = hostile(config)
        recipe.extra = {"thing": value}
        return recipe

    with pytest.raises(RecipeError, match=r"Fix: .*segue\.Variables\(loss, "):
        built_recipe(build, {})


@pytest.mark.parametrize("drawn", range(1, 8))
def test_a_cycle_that_was_put_back_has_the_mark_that_it_had(drawn):
    was, made = itertools.cycle("abc"), itertools.cycle("abc")
    for _ in range(drawn):
        next(was)
    put(made, tree_of(was, path="rates"))
    assert mark_of(made) == mark_of(was)
    assert next(made) == next(was)
