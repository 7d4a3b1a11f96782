"""What a recipe is before it has any state: which changes are seen, which are none, and which were meant."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from segue.continuity.recipe_diff import (
    BINDING,
    CODE,
    CONFIG,
    DATA,
    HYPERPARAMETERS,
    MODEL,
    NEXT_BATCHES,
    differences,
    setup_changes,
)
from segue.data.loader import Feed
from segue.data.streams import seed_all
from segue.recipe import Recipe
from segue.testing.recipes import tiny
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.recipe_record import binding, named_parameters, next_batches, setup_components


def captured(recipe, *, config=None, build=tiny, samples_seen=0):
    feed = Feed(recipe.data, recipe="tiny", seed=0)
    components = setup_components(recipe, feed, Progress(0, samples_seen), build=build, config=config or {}, state={})
    return {name: component.capture() for name, component in components.items()}


def changes_of(change, **fields):
    """What is found when a recipe is built a second time and this was done to it."""
    seed_all(0)
    before = captured(tiny({}))
    seed_all(0)
    recipe = tiny({})
    change(recipe)
    return setup_changes(before, captured(recipe, **fields.pop("captured", {})), environment_changes=(), **fields)


def set_dropout(recipe):
    recipe.model[3].p = 0.5


def set_decay(recipe):
    recipe.optimizer.param_groups[0]["weight_decay"] = 0.3


def set_clip(recipe):
    recipe.clip_grad_norm = 1.0


def set_loss(recipe):
    recipe.loss = lambda model, batch: nn.functional.l1_loss(model(batch[0]), batch[1])


def set_rows(recipe):
    recipe.data.dataset.tensors[0][::50] += 1.0


def set_batches(recipe):
    recipe.data = DataLoader(recipe.data.dataset, batch_size=16, shuffle=True)


def set_layers(recipe):
    recipe.model[2] = nn.Tanh()


def set_parameters(recipe):
    recipe.model[0].weight = nn.Parameter(recipe.model[0].weight.detach().clone())


def set_momentum(recipe):
    recipe.model[1].momentum = 0.2


def set_schedule(recipe):
    recipe.scheduler.T_max = 400


def set_average(recipe):
    recipe.extra["average"]._decay = 0.5


CHANGES = [
    (set_average, {HYPERPARAMETERS}, "extra.average._decay was 0.9, now 0.5"),
    (
        set_dropout,
        {MODEL, HYPERPARAMETERS},
        "3 was 'Dropout(p=0.2, inplace=False)', now",
    ),
    (set_decay, {HYPERPARAMETERS}, "optimizer.0.weight_decay was 0.01, now 0.3"),
    (set_clip, {HYPERPARAMETERS}, "clip_grad_norm was 5.0, now 1.0"),
    (set_loss, {HYPERPARAMETERS, CODE}, "now 'tests.continuity.test_recipe_diff.set_loss.<locals>.<lambda>'"),
    (set_rows, {DATA}, "data.dataset.tensors.0 is changed"),
    (set_batches, {HYPERPARAMETERS, NEXT_BATCHES}, "data.batch_size was 32, now 16"),
    (set_layers, {MODEL, HYPERPARAMETERS}, "2 was 'ReLU()', now 'Tanh()'"),
    (set_parameters, {BINDING}, "0.0 was '0.weight', now 'not a parameter of the model'"),
    (set_momentum, {MODEL, HYPERPARAMETERS}, "1.momentum was 0.1, now 0.2"),
    (set_schedule, {HYPERPARAMETERS}, "scheduler.T_max was 500, now 400"),
]


@pytest.mark.parametrize(("change", "components", "said"), CHANGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_change_of_the_setup_is_found_and_said_in_words(change, components, said):
    found = changes_of(change)
    assert {finding.component for finding in found.findings} == components
    sentences = " ".join(finding.sentence for finding in found.findings)
    assert said in sentences
    assert not found.accepted


def test_the_same_recipe_built_twice_has_the_same_setup():
    assert changes_of(lambda recipe: None).findings == ()


def test_what_was_changed_on_purpose_is_accepted_by_its_name_or_with_another_config():
    named = changes_of(set_dropout, accept=(MODEL, HYPERPARAMETERS))
    assert (named.findings, {f.component for f in named.accepted}) == ((), {MODEL, HYPERPARAMETERS})
    half = changes_of(set_dropout, accept=(MODEL,))
    assert [f.component for f in half.findings] == [HYPERPARAMETERS]
    with_config = changes_of(set_dropout, captured={"config": {"dropout": 0.5}})
    assert (with_config.findings, len(with_config.accepted)) == ((), 2)


def test_no_config_accepts_other_samples():
    found = changes_of(lambda recipe: None, captured={"config": {"x": 1}, "samples_seen": 32})
    assert [finding.component for finding in found.findings] == [NEXT_BATCHES]


def test_a_checkpoint_without_a_setup_says_nothing():
    live = captured(tiny({}))
    assert setup_changes({}, live, environment_changes=()).findings == ()
    assert setup_changes({CONFIG: {}}, live, environment_changes=()).findings == ()


@pytest.mark.parametrize(("versions", "is_seen"), [((), True), (("threads",), True), (("torch",), False)])
def test_settings_that_only_another_torch_has_are_no_change(versions, is_seen):
    before = {HYPERPARAMETERS: {"lr": 0.1}}
    now = {HYPERPARAMETERS: {"lr": 0.1, "fused": None}}
    assert bool(setup_changes(before, now, environment_changes=versions).findings) is is_seen
    other = {HYPERPARAMETERS: {"lr": 0.2}}
    assert setup_changes(before, other, environment_changes=versions).findings


@pytest.mark.parametrize(("versions", "is_seen"), [(("torch",), True), (("python",), False)])
def test_code_is_not_compared_between_versions_of_python(versions, is_seen):
    before, now = {CODE: {"a.b": "0" * 16}}, {CODE: {"a.b": "1" * 16}}
    assert bool(setup_changes(before, now, environment_changes=versions).findings) is is_seen


def test_differences_name_the_path_and_tell_types_apart():
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a.1.b was 2, now 3"]
    assert differences(1, 1.0) == ["its value was 1, now 1.0"]
    assert differences(True, 1) == ["its value was True, now 1"]
    assert differences([1], [1, 2]) == ["its value was [1], now [1, 2]"]
    assert differences({"a": 1}, {}) == ["a was 1, now absent"]


class Augmented(Dataset):
    """With a stream, a log counter and a time of its own."""

    def __init__(self):
        self.rows = torch.zeros(300, 2)
        self.noise = np.random.default_rng(3)
        self.began_at = time.time()
        self.name = f"run-{uuid.uuid4()}"
        self.served = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.served += 1
        return self.rows[index] + self.noise.normal()


def augmented():
    model = nn.Linear(2, 1)
    data = DataLoader(Augmented(), batch_size=10)
    return Recipe(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=data, loss=lambda m, b: m(b).sum()
    )


def test_times_and_made_up_names_are_no_settings_and_looking_draws_nothing():
    recipe = augmented()
    stream = recipe.data.dataset.noise.bit_generator.state
    before = captured(recipe)
    assert recipe.data.dataset.noise.bit_generator.state == stream
    assert recipe.data.dataset.served == 0
    assert setup_changes(before, captured(augmented()), environment_changes=()).findings == ()
    assert before[HYPERPARAMETERS]["data.dataset.served"] == 0
    assert not {"data.dataset.began_at", "data.dataset.name"} & before[HYPERPARAMETERS].keys()


def test_binding_names_the_live_parameters_in_order_and_the_tied_ones():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD([{"params": [model[1].bias]}, {"params": [model[0].weight]}], lr=0.1)
    found = binding(named_parameters(model), {"optimizer": optimizer})
    assert found == {"groups": [["1.bias"], ["0.weight"]], "tied": {"1.weight": "0.weight"}}


def test_the_next_batches_are_told_from_those_of_any_other_place_and_seed():
    def hashes(samples_seen, *, seed=0):
        data = DataLoader(TensorDataset(torch.zeros(1000, 1)), batch_size=300, shuffle=True)
        return next_batches(Feed(data, recipe="x", seed=seed).order, samples_seen)

    assert hashes(300) == hashes(300)
    assert hashes(300)["lengths"] == [300, 300, 100, 300]
    assert len({hashes(n)["samples"] for n in (0, 300, 600, 1000)} | {hashes(0, seed=1)["samples"]}) == 5


def test_values_of_what_only_handles_samples_are_noted_and_break_nothing_by_themselves():
    before, now = {HYPERPARAMETERS: {"data.dataset.p": 0.1}}, {HYPERPARAMETERS: {"data.dataset.p": 0.2}}
    found = setup_changes(before, now, environment_changes=())
    assert (found.findings, found.accepted) == ((), ())
    assert "data.dataset.p was 0.1, now 0.2" in found.noted[0].sentence
    before, now = {CODE: {"globals of a.b": "1" * 16}}, {CODE: {"globals of a.b": "2" * 16}}
    code = setup_changes(before, now, environment_changes=())
    assert (code.findings, len(code.noted)) == ((), 1)


def test_other_samples_follow_from_a_batch_size_that_was_changed_on_purpose():
    before = {HYPERPARAMETERS: {"data.batch_size": 32}, NEXT_BATCHES: {"lengths": [32]}}
    now = {HYPERPARAMETERS: {"data.batch_size": 16}, NEXT_BATCHES: {"lengths": [16]}}
    assert len(setup_changes(before, now, environment_changes=()).findings) == 2
    accepted = setup_changes(before, now, environment_changes=(), accept=(HYPERPARAMETERS,))
    assert (accepted.findings, len(accepted.accepted)) == ((), 2)
