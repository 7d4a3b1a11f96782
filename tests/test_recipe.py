"""What `build` may return, and what is refused in which words; whose line of a traceback is shown."""

from __future__ import annotations

import dataclasses
import traceback

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.errors import RecipeError
from segue.recipe import Recipe, import_build
from segue.recipe_check import built_recipe
from segue.testing.recipes import tiny
from segue.user_objects.users_files import users_line
from tests.recipes import frozen, imported


def sound() -> Recipe:
    model = nn.Linear(2, 1)
    data = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Recipe(model=model, optimizer=optimizer, data=data, loss=lambda model, batch: model(batch[0]).mean())


def refusal(build) -> str:
    with pytest.raises(RecipeError) as refused:
        built_recipe(build, {})
    return str(refused.value)


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "None"), ((1, 2), "a tuple"), (nn.Linear(1, 1), "a Linear"), (Recipe, "the class Recipe")],
)
def test_what_is_no_recipe_is_refused_with_the_fix(returned, words):
    def build(config):
        return returned

    assert refusal(build) == (
        f"recipe 'tests.test_recipe:{build.__qualname__}': build returned {words}, not a segue.Recipe. "
        "Fix: return segue.Recipe(model=..., optimizer=..., data=..., loss=...)."
    )


def test_a_build_that_takes_no_config_is_refused_before_it_is_called():
    def build():
        raise AssertionError

    assert "build cannot be called with one argument, and segue calls build(config). Fix: define it as" in refusal(
        build
    )


def test_what_build_raises_comes_through_as_it_is():
    def build(config):
        raise ArithmeticError("its own")

    with pytest.raises(ArithmeticError, match="its own"):
        built_recipe(build, {})


def test_the_config_that_build_gets_is_a_copy():
    config = {"width": 8}

    def build(given):
        given["width"] = 9
        return sound()

    built_recipe(build, config)
    assert config == {"width": 8}


def test_an_import_that_raises_is_refused_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "torn_recipe.py").write_text("import math\n\nRATE = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"importing it \(torn_recipe\.py, line 3\) raised ZeroDivisionError"):
        import_build("torn_recipe:build")


class NoState:
    def step(self):
        return


class HalfState(NoState):
    def state_dict(self):
        return {}


class ByEpoch(HalfState):
    def step(self, epoch):
        return

    def load_state_dict(self, state):
        return


class ByMetric(ByEpoch):
    def step(self, *, val_loss):
        return


FLAT = sound()
PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau(FLAT.optimizer)
WRONG = [
    ("model", nn.Linear, "model is the class Linear: not a torch.nn.Module. Fix: model=an instance of your nn.Module."),
    ("optimizer", torch.optim.SGD, "optimizer is the class SGD: not a torch.optim.Optimizer."),
    ("data", FLAT.data.dataset, "data is a TensorDataset: not a torch.utils.data.DataLoader. Fix: data=torch.utils"),
    ("loss", 3.0, "loss is a float: not a function. Fix: loss=the function itself, not what it returns."),
    ("scheduler", NoState(), "scheduler is a NoState: without state_dict and load_state_dict. Fix: "),
    (
        "scheduler",
        PLATEAU,
        "scheduler is a ReduceLROnPlateau: its step needs metrics, but evaluate or evaluate_every is not set.",
    ),
    ("scheduler", HalfState(), "scheduler is a HalfState: without load_state_dict. Fix: give a torch.optim"),
    (
        "scheduler",
        ByEpoch(),
        "scheduler is a ByEpoch: its step needs epoch, and segue calls scheduler.step() after every",
    ),
    ("scheduler", ByMetric(), "scheduler is a ByMetric: its step needs val_loss, but evaluate or evaluate_every is"),
    ("scheduler", torch.optim.lr_scheduler.StepLR, "scheduler is the class StepLR: without step, state_dict and load_"),
    ("scheduler", {"a": NoState()}, "scheduler is a dict: scheduler.a is a NoState, without state_dict and load_state"),
    (
        "scheduler",
        {"warm": torch.optim.lr_scheduler.StepLR(FLAT.optimizer, 5), "flat": PLATEAU},
        "scheduler is a dict: scheduler.flat is a ReduceLROnPlateau, its step needs metrics, but evaluate",
    ),
    ("optimizer", lambda: None, "optimizer is a function: not a torch.optim.Optimizer. Fix: optimizer=torch.optim"),
    ("scaler", 2.0, "scaler is a float: not a torch.amp.GradScaler."),
    ("evaluate", 0.5, "evaluate is a float: not a function."),
    ("after_step", "ema", "after_step is a str: not a function."),
    ("clip_grad_norm", 0, "clip_grad_norm is an int: not a positive number."),
    ("clip_grad_norm", "1", "clip_grad_norm is a str: not a positive number."),
    ("extra", [1], "extra is a list: not a dict."),
    ("extra", {"ema": 1}, "extra is a dict: its item 'ema' (an int) has no state_dict and load_state_dict."),
]


@pytest.mark.parametrize(("field", "value", "words"), WRONG)
def test_a_field_of_a_wrong_type_is_refused_by_its_name(field, value, words):
    assert words in refusal(lambda config: dataclasses.replace(sound(), **{field: value}))


@pytest.mark.parametrize("scheduler", [PLATEAU, ByMetric(), {"warm": ByMetric(), "flat": PLATEAU}])
def test_a_scheduler_that_needs_a_metric_is_taken_with_evaluations(scheduler):
    fields = {"scheduler": scheduler, "evaluate": lambda model: 0.0}
    with pytest.raises(RecipeError, match="evaluate or evaluate_every is not set"):
        built_recipe(lambda config: dataclasses.replace(sound(), **fields), {})
    recipe = built_recipe(lambda config: dataclasses.replace(sound(), **fields, evaluate_every=5), {})
    assert recipe.by_metric == recipe.schedulers.keys()


def test_all_wrong_fields_are_named_at_once():
    said = refusal(lambda config: dataclasses.replace(sound(), data=None, loss=None))
    assert "data is None: not a torch.utils.data.DataLoader. loss is None: not a function. Fix: data=" in said


@pytest.mark.parametrize("build", [tiny, frozen.build, imported.tied, lambda config: sound()])
def test_sound_recipes_are_taken(build):
    assert isinstance(built_recipe(build, {}), Recipe)


def test_of_a_traceback_the_last_line_of_the_users_own_code_is_shown():
    def loss():
        torch.zeros(2) @ torch.zeros(3)

    with pytest.raises(RuntimeError) as raised:
        loss()
    text = "".join(traceback.format_exception(raised.value))
    first = loss.__code__.co_firstlineno
    assert users_line(text) == f"tests/test_recipe.py, line {first + 1} in loss"
    assert users_line("RuntimeError: no frames") == ""


def test_of_a_worker_of_a_data_loader_it_is_the_line_in_the_worker():
    class Torn(TensorDataset):
        def __getitem__(self, index):
            raise KeyError("torn")

    loader = DataLoader(Torn(torch.zeros(4)), num_workers=1)
    with pytest.raises(KeyError) as raised:
        next(iter(loader))
    line = Torn.__getitem__.__code__.co_firstlineno + 1
    place = users_line("".join(traceback.format_exception(raised.value)))
    assert place == f"tests/test_recipe.py, line {line} in __getitem__"
