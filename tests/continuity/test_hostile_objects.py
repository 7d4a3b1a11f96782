"""Objects of the user's that raise whatever is asked of them end no attempt and spoil no verdict."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from segue.checkpoints.format.state_tree import encode_tree
from segue.data.loader import samples_of
from segue.errors import RecipeError, SessionError, UnsupportedStateError
from segue.launch.memory import MemoryKills
from segue.recipe import Recipe
from segue.recipe_check import built_recipe
from segue.records import StopReason
from segue.trainer.health.failures import failure_of, stop_reason
from segue.trainer.programs.tracked import components_of_object
from segue.trainer.workloads.steps.step import begin_step
from tests.trainer.workloads.interrupted import assert_exact, killed_once, undisturbed

ROWS = 4


class Raised(Exception):
    """What no caller expects."""

    def __str__(self):
        raise LookupError("an exception that cannot be shown")


class Silent:
    """Answers to nothing that it was not given."""

    def __getattr__(self, name):
        raise Raised

    def __repr__(self):
        raise Raised

    def __bool__(self):
        raise Raised


class Hostile(Silent):
    """Is equal to nothing, and no key of a dict either."""

    def __eq__(self, other):
        raise Raised

    def __hash__(self):
        raise Raised

    @property
    def setting(self):
        raise Raised


class HostileLoss(Hostile):
    def __call__(self, model, batch):
        return model(batch["x"]).square().mean()


class HostileData(Hostile, Dataset):
    def __init__(self):
        self.inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index]


class HostileCollate(Hostile):
    def __call__(self, samples):
        return {"x": torch.stack(samples)}


class HostileAverage(Hostile):
    def __init__(self):
        self.mean = torch.zeros(4)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean.copy_(state["mean"])


class HostileAfterStep(Hostile):
    def __init__(self, config, model, average):
        self.config, self.model, self.average = config, model, average

    def __call__(self, step, metrics):
        self.average.mean.lerp_(self.model.inner.weight.detach()[0], 0.1)
        while step == self.config.get("hang_at") and not Path(self.config["once"]).exists():
            Path(self.config["once"]).touch()
            time.sleep(3600)


class HostileModel(nn.Module):
    """A model whose own attributes raise, as far as torch itself can still work with it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.helper = Hostile()

    def extra_repr(self):
        raise Raised

    @property
    def setting(self):
        raise Raised

    def forward(self, x):
        return self.inner(x)


class HostileScheduler(Hostile):
    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.steps)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def hostile(config):
    """Config: hang_at (step), once (a file: hangs once)."""
    model, average = HostileModel(), HostileAverage()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(HostileData(), batch_size=8, shuffle=True, collate_fn=HostileCollate()),
        loss=HostileLoss(),
        scheduler=HostileScheduler(optimizer),
        extra={"average": average},
        after_step=HostileAfterStep(config, model, average),
    )


@pytest.mark.matrix
def test_a_run_of_hostile_objects_is_resumed_exactly(fork_server, make_spec, tmp_path):
    spec = make_spec(
        run_id="hostile",
        recipe="tests.continuity.test_hostile_objects:hostile",
        config={"hang_at": 17, "once": str(tmp_path / "hung")},
        continuity={"rehearsal": "off", "witness_steps": ROWS},
    )
    history = killed_once(fork_server, spec, at=10, rows=ROWS)
    assert_exact(history, undisturbed(fork_server, spec), rows=ROWS)


FIELDS = [
    ("optimizer", "not a torch.optim.Optimizer"),
    ("data", "not a torch.utils.data.DataLoader"),
    ("loss", "not a function"),
    ("scheduler", "without step, state_dict and load_state_dict"),
    ("scaler", "not a torch.amp.GradScaler"),
    ("clip_grad_norm", "not a positive number"),
    ("accumulate", "not a number of batches"),
    ("epochs", "not a number of epochs"),
    ("evaluate_every", "neither a number of steps nor 'epoch'"),
    ("scheduler_every", "neither 'step' nor 'epoch'"),
    ("early_stop", "not a segue.EarlyStop"),
    ("extra", "not a dict"),
]


@pytest.mark.parametrize(("name", "what"), FIELDS)
def test_in_a_field_of_a_recipe_it_is_refused_by_its_class(name, what):
    def build(config):
        recipe = hostile(config)
        setattr(recipe, name, Hostile())
        return recipe

    with pytest.raises(RecipeError) as refused:
        built_recipe(build, {})
    assert f"{name} is a Hostile: {what}" in str(refused.value)


def test_in_extra_it_is_refused_by_its_name():
    def build(config):
        recipe = hostile(config)
        recipe.extra = {"thing": Hostile()}
        return recipe

    with pytest.raises(RecipeError, match=r"its item 'thing' \(a Hostile\) has no state_dict and load_state_dict"):
        built_recipe(build, {})


def test_as_what_build_returns_or_is_it_is_refused():
    with pytest.raises(RecipeError, match=r"build returned a Hostile, not a segue\.Recipe"):
        built_recipe(_returns_hostile, {})

    class Build(Hostile):
        def __call__(self, config):
            return hostile(config)

    assert isinstance(built_recipe(Build(), {}), Recipe)


def _returns_hostile(config):
    return Hostile()


_returns_hostile.__qualname__ = "build"


def test_as_a_loss_it_is_refused_and_its_function_is_named():
    recipe = hostile({})
    recipe.loss = HostileLoss()
    recipe.loss.__class__ = type("Returns", (HostileLoss,), {"__call__": lambda self, model, batch: Hostile()})
    with pytest.raises(Exception, match=r"Recipe.loss returned a Hostile; a step needs a scalar tensor"):
        begin_step(recipe, [{"x": torch.zeros(2, 4)}], step=1).read()


def test_as_a_data_set_it_gives_its_samples_one_by_one():
    assert len(samples_of(HostileData(), [3, 4])) == 2


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ({"a": Hostile()}, "state.a: cannot store a Hostile"),
        ({Silent(): 1}, "state: cannot store a dict with a Silent key"),
        ({Silent()}, "state: cannot store a Silent"),
        ([Hostile()], "state.0: cannot store a Hostile"),
    ],
)
def test_in_a_state_it_is_refused_by_its_path(tree, what):
    with pytest.raises(UnsupportedStateError) as refused:
        encode_tree(tree, path="state", tensors={})
    assert what in str(refused.value)


def test_as_an_object_to_track_it_is_refused():
    with pytest.raises(SessionError, match="got a Hostile, which has no state_dict and load_state_dict"):
        components_of_object("thing", Hostile())
    assert components_of_object("average", HostileAverage()).keys() == {"average"}


def test_as_an_exception_it_is_reported_by_its_class():
    kills = MemoryKills.now()
    assert stop_reason(Raised(), kills_before=kills) is StopReason.FAILED
    failure = failure_of(Raised())
    assert (failure.type, failure.message) == ("Raised", "a Raised that cannot be shown")
