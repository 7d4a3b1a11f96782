"""One step: bit for bit the result of a plain loop, and an error for a loss that cannot be trained on."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.errors import LossError
from segue.recipe import Recipe
from segue.trainer.workloads.steps.step import begin_step
from segue.trainer.workloads.steps.step_result import sent, together

STEPS = 20


def recipe_of(loss, *, order: str = "model", clip: float | None = 0.5) -> Recipe:
    torch.manual_seed(3)
    layers = [part for _ in range(6) for part in (nn.Linear(33, 33), nn.LayerNorm(33), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(33, 1))
    # As in most transformers recipes: no weight decay for biases and norms, so the groups are not in the model's order.
    plain = [p for p in model.parameters() if p.dim() < 2]
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    groups = {
        "model": [{"params": [*model.parameters()]}],
        "decay": [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        "reversed": [{"params": [*model.parameters()][::-1]}],
    }
    optimizer = torch.optim.AdamW(groups[order], lr=1e-3)
    data = DataLoader(TensorDataset(torch.randn(64, 33), torch.randn(64, 1)), batch_size=16)
    return Recipe(model=model, optimizer=optimizer, data=data, loss=loss, clip_grad_norm=clip)


def squares(model, batch):
    return 1e3 * nn.functional.mse_loss(model(batch[0]), batch[1])


def weights(recipe: Recipe) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in recipe.model.parameters()]


def in_a_plain_loop(recipe: Recipe) -> list[torch.Tensor]:
    batches = list(recipe.data)
    for step in range(STEPS):
        recipe.optimizer.zero_grad()
        recipe.loss(recipe.model, batches[step % len(batches)]).backward()
        torch.nn.utils.clip_grad_norm_(recipe.model.parameters(), recipe.clip_grad_norm)
        recipe.optimizer.step()
    return weights(recipe)


def in_segue(recipe: Recipe) -> list[torch.Tensor]:
    batches = list(recipe.data)
    for step in range(STEPS):
        begin_step(recipe, [batches[step % len(batches)]], step=step + 1).read()
    return weights(recipe)


@pytest.mark.parametrize(
    "order", ["model", *(pytest.param(order, marks=pytest.mark.matrix) for order in ("decay", "reversed"))]
)
def test_a_clipped_gradient_gives_the_weights_of_a_plain_loop_to_the_last_bit(order):
    plain, ours = in_a_plain_loop(recipe_of(squares, order=order)), in_segue(recipe_of(squares, order=order))
    assert all(map(torch.equal, plain, ours))


def test_gradients_that_no_optimizer_clears_are_left_out_of_the_norm_because_a_resume_loses_them():
    def second_norm(*, resumed: bool) -> float:
        recipe = recipe_of(squares)
        recipe.optimizer.param_groups[0]["params"].pop()  # The last bias: its gradient grows with every step.
        batch = next(iter(recipe.data))
        begin_step(recipe, [batch], step=1).read()
        if resumed:
            recipe.model.zero_grad()
        return begin_step(recipe, [batch], step=2).read().outcome.grad_norm

    assert second_norm(resumed=False) == second_norm(resumed=True)


class Output(NamedTuple):
    loss: torch.Tensor


@pytest.mark.parametrize(
    ("loss", "found", "fix"),
    [
        (
            lambda model, batch: model(batch[0]),
            "a tensor of shape [16, 1]",
            "reduce it to one number, e.g. by loss.mean()",
        ),
        (
            lambda model, batch: squares(model, batch).detach(),
            "a tensor without a gradient (no grad_fn)",
            "compute it from",
        ),
        (lambda model, batch: squares(model, batch).item(), "a float", "return the tensor, not loss.item() or"),
        (lambda model, batch: None, "None", "end the function with `return loss`"),
        (lambda model, batch: Output(squares(model, batch)), "an Output", "return its field .loss"),
        (lambda model, batch: [squares(model, batch)], "a list", "return the loss tensor itself"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused_with_the_fix(loss, found, fix):
    recipe = recipe_of(loss)
    before = weights(recipe)
    with pytest.raises(LossError) as refused:
        begin_step(recipe, [next(iter(recipe.data))], step=1).read()
    said = str(refused.value)
    assert said.startswith(f"Recipe.loss (tests/trainer/test_step.py, line {loss.__code__.co_firstlineno}) returned")
    assert f"returned {found}" in said
    assert f"; a step needs a scalar tensor with a gradient. Fix: {fix}" in said
    assert all(map(torch.equal, before, weights(recipe)))


def test_a_loss_of_one_element_is_accepted():
    recipe = recipe_of(lambda model, batch: squares(model, batch).reshape(1))
    assert begin_step(recipe, [next(iter(recipe.data))], step=1).read().outcome.loss > 0


def test_numbers_that_are_read_together_keep_every_bit():
    third = torch.tensor(1.0) / 3
    low = [third, third.bfloat16().reshape(1), third.half()]
    assert together(low, torch.device("cpu")).tolist() == sent(low).read() == [float(each) for each in low]
    high = [third, third.double() / 7, torch.tensor(2**40 + 1), torch.tensor(True)]
    assert together(high, torch.device("cpu")).tolist() == sent(high).read() == [float(each) for each in high]
