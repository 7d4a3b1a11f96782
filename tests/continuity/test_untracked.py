"""State outside every component: found wherever it lives, and not where a component holds it."""

from __future__ import annotations

import collections
import contextvars
import functools
import heapq
import itertools
import multiprocessing
import random
import sys
import threading
import types
import weakref
from array import array

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue import Recipe
from segue.continuity.untracked import marks
from segue.errors import UnsupportedStateError
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.outside import of_recipe
from segue.trainer.workloads.state import capture, components_of

LEVEL = 0
TABLE = {"seen": 0}
CURRENT = contextvars.ContextVar("CURRENT", default=0)


class Counting:
    total = 0

    def __init__(self):
        self.level, self.held = 0, [0.0]
        self.inner = types.SimpleNamespace(deep={"x": 0})


class Slotted:
    __slots__ = ("level",)

    def __init__(self):
        self.level = 0


def recipe_with(step, *, extra=None, model=None, **more):
    model = model or nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(model, batch):
        step(model)
        return model(batch[0]).square().mean()

    data = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=8)
    return Recipe(model=model, optimizer=optimizer, data=data, loss=loss, extra=extra or {}, **more)


def trained(recipe, *, steps=3):
    """Findings after some steps."""
    outside = of_recipe(recipe, build=recipe_with)
    components = components_of(recipe, Progress(), name="x")
    for batch in itertools.islice(itertools.cycle(recipe.data), steps):
        recipe.optimizer.zero_grad()
        recipe.loss(recipe.model, batch).backward()
        recipe.optimizer.step()
        if recipe.after_step is not None:
            recipe.after_step(1)
    return outside.look(capture(components))


def nonlocal_counter():
    calls = 0

    def step(model):
        nonlocal calls
        calls += 1

    return step, "calls"


def rebound_global():
    def step(model):
        global LEVEL  # noqa: PLW0603 - what is tested
        LEVEL += 1

    return step, "LEVEL"


def changed_table():
    def step(model):
        TABLE["seen"] += 1

    return step, "TABLE"


def class_attribute():
    def step(model):
        Counting.total += 1

    return step, "Counting.total"


def of_object(change, name):
    def make():
        held = Counting()
        return (lambda model: change(held)), name

    return make


def slot():
    held = Slotted()

    def step(model):
        held.level += 1

    return step, "level"


def default_argument():
    def step(model, seen=[0]):  # noqa: B006 - what is tested
        seen[0] += 1

    return step, "seen"


def function_attribute():
    def step(model):
        step.calls += 1

    step.calls = 0
    return step, "calls"


def of_value(value, change, name="value"):
    def make():
        held = value()
        return (lambda model: change(held)), "held"

    return make


def rebound_tensor():
    mean = torch.zeros(3)

    def step(model):
        nonlocal mean
        mean = 0.9 * mean + 0.1

    return step, "mean"


def teacher():
    module = nn.Linear(4, 1)

    def step(model):
        with torch.no_grad():
            module.weight.mul_(0.9)

    return step, 'extra={"module": segue.Variables(step, "module")}'


def second_optimizer():
    weight = nn.Parameter(torch.ones(3))
    other = torch.optim.Adam([weight])

    def step(model):
        weight.grad = torch.ones(3)
        other.step()

    return step, 'segue.Variables(step, "other", "weight")'


def partial():
    held = {"n": [0]}

    def count(model, *, box):
        box["n"][0] += 1

    return functools.partial(count, box=held), "n"


def decorated():
    calls = []

    def counted(function):
        @functools.wraps(function)
        def inner(model):
            calls.append(1)
            return function(model)

        return inner

    return counted(lambda model: None), "calls"


def thread_local():
    held = threading.local()
    held.level = 0

    def step(model):
        held.level += 1

    return step, "level"


def context():
    def step(model):
        CURRENT.set(CURRENT.get() + 1)

    return step, "CURRENT"


def shared_value():
    held = multiprocessing.Value("i", 0)

    def step(model):
        held.value += 1

    return step, "held"


def weak():
    key = Counting()
    held = weakref.WeakKeyDictionary({key: [0]})

    def step(model):
        held[key][0] += 1
        key.level += 0

    return step, "held"


def running_generator():
    def numbers():
        yield from range(100)

    held = numbers()
    return (lambda model: next(held)), "held"


def cached_factory():
    @functools.lru_cache(maxsize=1)
    def schedule():
        return Counting()

    schedule()

    def step(model):
        schedule().level += 1

    return step, "schedule.cached"


PLACES = [
    cached_factory,
    nonlocal_counter,
    rebound_global,
    changed_table,
    class_attribute,
    of_object(lambda held: setattr(held, "level", held.level + 1), "level"),
    of_object(lambda held: held.held.append(1.0), "held"),
    of_object(lambda held: held.inner.deep.update(x=held.inner.deep["x"] + 1), "deep"),
    slot,
    default_argument,
    function_attribute,
    rebound_tensor,
    teacher,
    second_optimizer,
    partial,
    decorated,
    thread_local,
    context,
    shared_value,
    weak,
    running_generator,
    of_value(lambda: collections.deque([1, 2], maxlen=2), lambda held: held.append(len(held) + held[-1])),
    of_value(lambda: [3, 4], lambda held: heapq.heappush(held, len(held))),
    of_value(collections.Counter, lambda held: held.update("a")),
    of_value(lambda: {1}, lambda held: held.add(len(held) + 1)),
    of_value(lambda: bytearray(4), lambda held: held.__setitem__(0, held[0] + 1)),
    of_value(lambda: array("d", [0.0]), lambda held: held.__setitem__(0, held[0] + 1)),
    of_value(lambda: np.zeros(3), lambda held: held.__iadd__(1)),
    of_value(lambda: pd.DataFrame({"a": [0.0]}), lambda held: held.__setitem__("a", held["a"] + 1)),
    of_value(lambda: torch.zeros(3), lambda held: held.add_(1)),
    of_value(lambda: torch.Generator().manual_seed(1), lambda held: torch.rand(1, generator=held)),
    of_value(lambda: np.random.default_rng(1), lambda held: held.random()),
    of_value(lambda: random.Random(1), lambda held: held.random()),
    of_value(itertools.count, next),
    of_value(lambda: itertools.cycle([1, 2, 3, 4, 5]), next),
    of_value(lambda: iter(range(100)), next),
    of_value(lambda: iter([1] * 100), next),
    of_value(lambda: enumerate([1] * 100), next),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: getattr(place, "__name__", ""))
def test_what_a_step_changes_is_found_and_named_wherever_it_lives(place):
    step, name = place()
    found = trained(recipe_with(step))
    assert any(name in f"{finding.sentence} {finding.fix}" for finding in found)
    assert all(finding.fix for finding in found)


def test_state_of_hooks_is_found():
    seen = collections.deque(maxlen=3)
    recipe = recipe_with(lambda model: None)
    calls = {"forward": 0}
    recipe.model[0].register_forward_hook(lambda *_: calls.update(forward=calls["forward"] + 1))
    recipe.model[2].weight.register_hook(lambda grad: seen.append(float(grad.sum())))
    recipe.optimizer.register_step_post_hook(lambda *_, box=[0]: box.append(1))
    found = " ".join(finding.sentence for finding in trained(recipe))
    assert all(name in found for name in ("calls", "seen", "box"))


def test_a_plain_attribute_and_a_hidden_tensor_of_a_module_are_found():
    model = nn.Sequential(nn.Linear(4, 1))
    model.level, model[0].hidden = 0, [torch.zeros(2)]

    def step(model):
        model.level += 1
        model[0].hidden[0].add_(1)

    one, other = trained(recipe_with(step, model=model))
    assert "level was 0, now 3" in one.sentence
    assert 'segue.Variables(recipe.model, "level")' in one.fix
    assert "hidden" in other.sentence


def test_attributes_put_on_a_parameter_and_on_the_loader_are_found():
    recipe = recipe_with(lambda model: None)
    weight, loader = recipe.model[0].weight, recipe.data
    weight.score, loader.difficulty = 0.0, 0

    def step(model):
        weight.score += 0.5
        loader.difficulty += 1

    plain = recipe.loss
    recipe.loss = lambda model, batch: (step(model), plain(model, batch))[1]
    found = " ".join(finding.sentence for finding in trained(recipe))
    assert "weight (Parameter): score" in found
    assert "data.difficulty" in found


def test_confidential_text_is_not_recorded():
    held = types.SimpleNamespace(access_token="first", calls=0)

    def step(model):
        held.access_token, held.calls = "a-new-one", held.calls + 1

    (finding,) = trained(recipe_with(step))
    assert "calls" in finding.sentence
    assert "a-new-one" not in finding.sentence


class Average:
    def __init__(self, model, *, keeps_count):
        self.values = {name: value.detach().clone() for name, value in model.named_parameters()}
        self._model, self._keeps_count = model, keeps_count
        self.count = 0

    def update(self, step):
        self.count += 1
        for name, value in self._model.named_parameters():
            self.values[name].lerp_(value.detach(), 1 / (1 + self.count))

    def state_dict(self):
        kept = {"n": self.count} if self._keeps_count else {}
        return {"shadow": [value.clone() for value in self.values.values()], **kept}

    def load_state_dict(self, tree):
        raise NotImplementedError


def test_registered_state_is_not_reported_under_another_name_or_as_a_copy():
    model = nn.Linear(4, 1)
    average = Average(model, keeps_count=True)
    recipe = recipe_with(lambda _: None, model=model, extra={"average": average}, after_step=average.update)
    assert trained(recipe) == ()


def test_a_field_that_a_state_dict_leaves_out_is_named_with_it():
    model = nn.Linear(4, 1)
    average = Average(model, keeps_count=False)
    recipe = recipe_with(lambda _: None, model=model, extra={"average": average}, after_step=average.update)
    (finding,) = trained(recipe)
    assert "extra.average (Average): count was 0, now 3" in finding.sentence
    assert "return count from state_dict() of extra.average" in finding.fix


def test_a_recipe_without_state_of_its_own_has_no_finding():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1))
    recipe = recipe_with(lambda _: torch.rand(1), model=model)
    recipe.scheduler = torch.optim.lr_scheduler.LambdaLR(recipe.optimizer, lambda step: 1 / (1 + step))
    assert trained(recipe) == ()


def test_each_value_is_reported_once_and_changes_that_come_later_are_reported_then():
    calls = {"early": 0, "late": 0}
    late = [0]

    def step(model):
        calls["early"] += 1
        late[0] += calls["early"] > 3

    recipe = recipe_with(step)
    outside = of_recipe(recipe, build=recipe_with)
    components = components_of(recipe, Progress(), name="x")
    found = []
    for number in range(1, 9):
        step(recipe.model)
        found.append((number, [finding.sentence.partition(" ")[0] for finding in outside.look(capture(components))]))
    reported = {number: names for number, names in found if names}
    assert list(reported) == [1, 4]
    assert "calls" in reported[1][0]
    assert "late" in reported[4][0]


@pytest.mark.matrix
@pytest.mark.parametrize("compiles", ["module", "function", "in place"])
def test_what_torchs_compiler_keeps_is_nobodys_state_and_what_it_compiled_is(compiles):
    model, seen = nn.Linear(4, 1), {"steps": 0}

    def plain(x):
        seen["steps"] += 1
        return model(x)

    if compiles == "in place":
        model.compile(backend="eager")
    fast = torch.compile(model if compiles == "module" else plain, backend="eager")

    def step(_):
        seen["steps"] += compiles != "function"
        fast(torch.ones(2 + seen["steps"], 4))

    recipe = recipe_with(step, model=model)
    outside = of_recipe(recipe, build=recipe_with)
    trained(recipe)
    findings = outside.look(capture(components_of(recipe, Progress(), name="x")))
    assert [finding.sentence.partition(" (")[0].rpartition(".")[2] for finding in findings] == ["seen"]


def test_hostile_objects_do_not_stop_the_look():
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __eq__(self, other):
            raise RuntimeError

        def __hash__(self):
            raise RuntimeError

        def __len__(self):
            raise RuntimeError

        def __repr__(self):
            raise RuntimeError

        def __bool__(self):
            raise RuntimeError

    held, calls = Hostile(), [0]

    def step(model):
        calls[0] += 1
        assert held is not None

    (finding,) = trained(recipe_with(step))
    assert "calls" in finding.sentence
    assert sys.exc_info() == (None, None, None)


def test_a_dict_in_extra_that_no_checkpoint_can_hold_is_refused_when_the_recipe_is_built():
    recipe = recipe_with(lambda model: None, extra={"state": {"lock": threading.Lock()}})
    with pytest.raises(UnsupportedStateError, match=r"extra\.state\.lock.*Fix: "):
        components_of(recipe, Progress(), name="x")


def test_a_look_reads_no_tensor_that_a_component_holds(monkeypatch):
    read, losses, feed = [], [], marks._feed_tensor
    model = nn.Sequential(nn.Linear(4, 30), nn.Linear(30, 30), nn.Linear(30, 1))
    recipe = recipe_with(lambda model: losses.append(0.5), model=model)
    with monkeypatch.context() as patched:
        outside = of_recipe(recipe, build=recipe_with)
        components = components_of(recipe, Progress(), name="x")
        recipe.loss(model, [torch.rand(8, 4)]).backward()
        recipe.optimizer.step()
        patched.setattr(marks, "_feed_tensor", lambda tensor, hasher: (read.append(tensor), feed(tensor, hasher)))
        (finding,) = outside.look(capture(components))
    assert "losses" in finding.sentence
    slots = [value for state in recipe.optimizer.state.values() for value in state.values()]
    held = {tensor.data_ptr() for tensor in (*model.parameters(), *slots)}
    assert not [tensor.shape for tensor in read if tensor.data_ptr() in held]
