"""Recipes whose habits get in the way of copying their state while they train."""

from __future__ import annotations

import torch
from torch import nn

from segue.testing.recipes import Average, tiny

WIDTH = 50_000  # Large enough that a copy takes as long as a step.


def build(config):
    """The tiny recipe, wide, with one habit that gets in the way of copying its state during a step."""
    recipe = tiny({"width": WIDTH, "batch_size": 4} | {k: v for k, v in config.items() if k != "habit"})
    recipe.evaluate = None  # An evaluation waits for the copy.
    HABITS[config["habit"]](recipe)
    return recipe


def no_habit(recipe):
    return


def optimizer_for_each(recipe):
    recipe.optimizer, recipe.scheduler = torch.optim.AdamW(recipe.model.parameters(), lr=1e-2, foreach=True), None


def optimizer_fused(recipe):
    recipe.optimizer, recipe.scheduler = torch.optim.AdamW(recipe.model.parameters(), lr=1e-2, fused=True), None


def second_optimizer_in_the_loss(recipe):
    """A critic that is trained within the loss, as adversarial training does, and clipped behind torch's back."""
    recipe.model.add_module("critic", nn.Linear(1, WIDTH))
    second = torch.optim.SGD(recipe.model.critic.parameters(), lr=0.1, momentum=0.9)
    average = Average(recipe.model)
    recipe.extra, recipe.after_step = {"average": average, "critic optimizer": second}, average.update
    recipe.evaluate = None

    def loss(model, batch):
        made = model[:5](batch[0])
        second.zero_grad()
        model.critic(made.detach()).square().mean().backward()
        second.step()
        for parameter in model.critic.parameters():
            parameter.data.clamp_(-0.5, 0.5)
        return nn.functional.mse_loss(made, batch[1]) + model.critic(made).mean()

    recipe.loss = loss


def gradients_summed_in_the_loss(recipe):
    inner = recipe.loss

    def loss(model, batch):
        for half in range(2):
            inner(model, [part[half::2] for part in batch]).backward()
        return inner(model, batch)

    recipe.loss = loss


def scaler_that_skips(recipe):
    """Its scale is far too large at first: many steps pass in which the optimizer does nothing."""
    recipe.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=5)


def thawed_late(recipe):
    """Another layer is trained from step 12 on: the optimizer's state grows between two saves."""
    recipe.model[0].requires_grad_(False)
    update = recipe.after_step

    def after_step(step):
        update(step)
        if step >= 12:
            recipe.model[0].requires_grad_(True)

    recipe.after_step = after_step


class Counting(torch.optim.SGD):
    """Keeps a plain number in its state, next to the state of each parameter, as some optimizers do."""

    def step(self, closure=None):
        self.state["calls"] = self.state.get("calls", 0) + 1
        return super().step(closure)


def optimizer_with_plain_state(recipe):
    recipe.optimizer = Counting(recipe.model.parameters(), lr=1e-3, momentum=0.9)
    recipe.scheduler = None


def normed_in_place(recipe):
    """Weights are normalised in each forward pass, as EDM2 and cosine classifiers do."""
    inner, weight = recipe.loss, recipe.model[0].weight
    _put_ballast_before(recipe)

    def loss(model, batch):
        with torch.no_grad():
            weight.copy_(weight / weight.norm(dim=1, keepdim=True))
        return inner(model, batch)

    recipe.loss = loss


def normed_behind_torchs_back(recipe):
    """The same by way of `.data`, which moves no version."""
    inner, weight = recipe.loss, recipe.model[0].weight
    _put_ballast_before(recipe)

    def loss(model, batch):
        weight.data.div_(weight.data.norm(dim=1, keepdim=True))
        return inner(model, batch)

    recipe.loss = loss


def _put_ballast_before(recipe):
    # It comes first in the state, so the weights are still to be copied when the loss gets at them.
    ballast = nn.Parameter(torch.zeros(8_000_000))
    recipe.model.register_parameter("ballast", ballast)
    recipe.optimizer.add_param_group({"params": [ballast]})
    recipe.scheduler, recipe.extra, recipe.after_step = None, {}, None


HABITS = {
    habit.__name__: habit
    for habit in (
        no_habit,
        optimizer_for_each,
        optimizer_fused,
        second_optimizer_in_the_loss,
        gradients_summed_in_the_loss,
        scaler_that_skips,
        thawed_late,
        optimizer_with_plain_state,
        normed_in_place,
        normed_behind_torchs_back,
    )
}
