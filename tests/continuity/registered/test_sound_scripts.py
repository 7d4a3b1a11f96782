"""Scripts that look suspicious and lose nothing: each resume is exact, or equivalent, whatever they observe."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

from benchmarks.continuity.blind.cases import Axis, Case, cases
from benchmarks.continuity.blind.trial import run_sound
from benchmarks.continuity.scripts.base import net, recipe


@pytest.fixture(autouse=True)
def level():
    log = logging.getLogger("segue")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


class Around(nn.Module):
    """Layers in a container that the module's own code uses."""

    def __init__(self, layers, call=None):
        super().__init__()
        self.layers, self.call = layers, call or (lambda layers, x: layers(x))

    def forward(self, x):
        return self.call(self.layers, x)


def one_by_one(layers, x):
    for layer in layers.values() if isinstance(layers, nn.ModuleDict) else layers:
        x = layer(x)
    return x


def observed(model):
    """A recipe whose hooks sum up what they see of each layer, for a person."""
    seen, norms = defaultdict(list), Counter()

    def observe(module, given, found):
        seen[type(module).__name__].append(found.detach().abs().mean().item())

    def observe_gradient(grad):
        norms["all"] += float(grad.norm())

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(observe)
    for parameter in model.parameters():
        parameter.register_hook(observe_gradient)
    return recipe(model)


def hooks_of_a_sequence(config):
    return observed(net())


def hooks_within_an_attribute(config):
    return observed(Around(net()))


def hooks_within_a_list(config):
    return observed(Around(nn.ModuleList(net()), one_by_one))


def hooks_within_a_dict(config):
    return observed(Around(nn.ModuleDict({str(n): layer for n, layer in enumerate(net())}), one_by_one))


@pytest.mark.parametrize(
    "build", [hooks_of_a_sequence, hooks_within_an_attribute, hooks_within_a_list, hooks_within_a_dict]
)
def test_what_hooks_of_layers_sum_up_for_a_person_is_not_carried(build):
    case = Case(build.__name__, Axis.SOUND, f"{__name__}:{build.__name__}", is_sound=True)
    assert [(each.verdict, each.sentence, each.problem) for each in run_sound(case, rounds=1)] == [("exact", "", "")]


def a_list_of_counters_in_a_module(config):
    """Like the sound ones, but what grows in the list of objects decides the output."""

    class Scale:
        def __init__(self):
            self.calls = 0

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scales = net(), [Scale()]

        def forward(self, x):
            self.scales[0].calls += 1
            return self.body(x) * torch.tensor(min(1.0, self.scales[0].calls / 100))

    return recipe(Scaled())


def test_what_a_list_of_objects_in_a_module_counts_still_is():
    case = Case("list", Axis.SOUND, f"{__name__}:a_list_of_counters_in_a_module", is_sound=True)
    (outcome,) = run_sound(case, rounds=1)
    assert outcome.verdict == "broken"
    assert "calls" in outcome.sentence


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Open files.
@pytest.mark.parametrize("name", [case.name for case in cases(Axis.SOUND) if not case.is_alone])
def test_a_script_that_loses_nothing_is_not_called_broken(name):
    case = next(case for case in cases(Axis.SOUND) if case.name == name)
    (outcome,) = run_sound(case, rounds=1)
    assert (outcome.verdict in ("exact", "equivalent"), outcome.problem) == (True, ""), outcome.sentence
