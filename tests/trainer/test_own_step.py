"""Recipes that make their steps themselves, with several optimizers: measured and resumed like any other."""

from __future__ import annotations

import dataclasses
import math
import signal

import pyarrow.parquet as pq
import pytest
import torch

import segue
from segue.data.streams import seed_all
from segue.errors import LossError, RecipeError
from segue.integrations.mlflow_model import save_model
from segue.recipe_check import built_recipe
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.workloads.steps.step import begin_step
from tests.recipes.adversarial import adversarial
from tests.support.final_states import state_at_end
from tests.support.observers import stop_when_proven


@pytest.fixture
def make_adversarial(make_spec):
    def make(run_id="adversarial", **config):
        return make_spec(
            run_id=run_id,
            recipe="tests.recipes.adversarial:adversarial",
            config=config,
            continuity={"rehearsal": "off", "witness_steps": 2},
        )

    return make


@pytest.fixture
def killed_and_resumed(fork_server, make_adversarial, open_log, tmp_path):
    """Log and last report of a run that hung at step 13 and was killed there."""

    def make(**config):
        spec = make_adversarial(**config, hang_at=13, once=str(tmp_path / "hung"))
        runlog = open_log(spec)
        lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
        assert lost.stop_reason is StopReason.LOST
        return runlog, fork_server.run_attempt(runlog, spec)

    return make


@pytest.mark.matrix
def test_a_killed_run_with_two_optimizers_ends_as_an_undisturbed_one(
    fork_server, make_adversarial, open_log, killed_and_resumed
):
    whole = make_adversarial(run_id="whole")
    whole_log = open_log(whole)
    fork_server.run_attempt(whole_log, whole)
    runlog, report = killed_and_resumed()
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    history, undisturbed = read_history(runlog.reload()), read_history(whole_log.reload())
    verdict = history.attempts[1].verdict
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), 2)
    assert state_at_end(history) == state_at_end(undisturbed)
    parts = ("optimizer.generator", "optimizer.critic", "scheduler.generator", "scheduler.critic")
    assert set(parts) <= history.newest.manifest.components.keys()
    frame = segue.curve(runlog.reload())
    total = frame["metric.critic"] + frame["metric.generator"]
    assert frame["loss"].to_numpy() == pytest.approx(total.to_numpy(), rel=1e-6)
    measured = frame["grad_norm"].dropna()
    assert len(measured)
    assert (measured > 0).all()


def test_its_weights_are_exported_and_the_readme_names_each_optimizer(
    fork_server, make_adversarial, open_log, tmp_path
):
    spec = make_adversarial()
    fork_server.run_attempt(open_log(spec), spec)
    said = save_model(spec.run_id, spec.store, tmp_path / "model")
    assert said == "weights as safetensors, because the recipe makes its steps itself"
    readme = (tmp_path / "model" / "README.md").read_text()
    for line in ("optimizer['critic'].load_state_dict(", "scheduler['generator'].load_state_dict("):
        assert line in readme
    curve = pq.read_table(tmp_path / "model" / "loss_curve.parquet")
    assert len(curve) == 40
    assert {"metric.critic", "metric.generator"} <= set(curve.column_names)


@pytest.mark.matrix
def test_an_optimizer_that_the_recipe_does_not_give_breaks_the_resume(killed_and_resumed):
    runlog, _ = killed_and_resumed(forget="critic")
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert verdict.kind is VerdictKind.BROKEN, verdict.findings


def built(**fields):
    seed_all(0)
    return dataclasses.replace(built_recipe(adversarial, {}), **fields)


def a_batch(recipe):
    return next(iter(recipe.data))


def test_the_row_has_the_gradients_and_rates_that_each_update_used():
    recipe, seen = built(), []
    for optimizer in recipe.optimizers.values():
        optimizer.register_step_pre_hook(
            lambda each, *_: seen.extend(p.grad.norm() for g in each.param_groups for p in g["params"])
        )
    updates = []
    result = begin_step(recipe, [a_batch(recipe)], step=1, before_update=lambda: updates.append(1)).read()
    assert result.outcome.grad_norm == pytest.approx(math.hypot(*map(float, seen)), rel=1e-6)
    assert result.outcome.lr == (0.01, 0.02)
    assert result.outcome.loss == pytest.approx(sum(result.parts.values()))
    assert len(updates) == 2, "one for each optimizer"
    for step in range(2, 9):
        result = begin_step(recipe, [a_batch(recipe)], step=step).read()
    assert result.outcome.lr == (0.005, 0.01), "after seven steps both schedulers have halved"


def test_a_wrapped_optimizer_is_measured_where_it_is_updated():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state
            self.zero_grad, self.state_dict = optimizer.zero_grad, optimizer.state_dict
            self.load_state_dict, self.step = optimizer.load_state_dict, optimizer.step

    recipe = built()
    optimizer = recipe.optimizers["optimizer.generator"]

    def step(model, batch, wrapper):
        wrapper.zero_grad()
        loss = model.generator(batch[0][:, :2]).square().mean()
        loss.backward()
        wrapper.step()
        return loss

    recipe = dataclasses.replace(recipe, optimizer=Wrapper(optimizer), scheduler=None, step=step)
    outcome = begin_step(recipe, [a_batch(recipe)], step=1).read().outcome
    assert outcome.grad_norm > 0
    assert outcome.lr == (0.01,)


@pytest.mark.parametrize(
    ("value", "loss", "parts"),
    [
        (torch.tensor(2.0), 2.0, {}),
        (2, 2.0, {}),
        ({"loss": torch.tensor([3.0]), "a": 1.0}, 3.0, {"a": 1.0}),
        ({"a": 1.0, "b": torch.tensor(2.0)}, 3.0, {"a": 1.0, "b": 2.0}),
    ],
)
def test_a_step_may_return_tensors_or_numbers(value, loss, parts):
    recipe = built(step=lambda model, batch, optimizers: value, scheduler=None)
    result = begin_step(recipe, [a_batch(recipe)], step=1).read()
    assert (result.outcome.loss, result.parts, result.outcome.grad_norm) == (loss, parts, 0.0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "Recipe.step returned None"), (torch.zeros(2), "a tensor of shape [2]"), ("x", "a str")],
)
def test_a_step_that_returns_no_number_is_refused(value, said):
    recipe = built(step=lambda model, batch, optimizers: value)
    with pytest.raises(LossError) as refused:
        begin_step(recipe, [a_batch(recipe)], step=1).read()
    assert said in str(refused.value)
    assert "Fix: return the loss of the step, or a dict of losses" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"step": None}, "loss is None: not a function"),
        ({"step": None, "loss": print}, "optimizer is a dict: there is no step that uses them. Fix: step=a function"),
        ({"loss": print}, "step makes the whole step. Fix: leave out loss or step"),
        ({"accumulate": 2}, "accumulate is an int: step makes the whole step"),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm is a float: step makes the whole step. Fix: clip in step"),
        ({"optimizer": {}}, "optimizer is a dict: not optimizers by name"),
        ({"optimizer": {"critic": 3}}, "optimizer is a dict: optimizer.critic is an int, not a torch.optim.Optimizer"),
    ],
)
def test_what_does_not_go_with_a_step_is_refused(fields, said):
    with pytest.raises(RecipeError) as refused:
        built_recipe(lambda config: dataclasses.replace(adversarial({}), **fields), {})
    assert said in str(refused.value)


def test_a_step_of_its_own_is_refused_where_several_ranks_train(make_adversarial, make_spec):
    from segue.trainer.ranks.collectives import Ranks
    from segue.trainer.workloads.live_recipe import LiveRecipe

    class Two(Ranks):
        count = 2

    with pytest.raises(RecipeError, match=r"its own step cannot be split over 2 ranks. Fix: train with ranks = 1"):
        LiveRecipe(make_adversarial(), device=torch.device("cpu"), ranks=Two())
