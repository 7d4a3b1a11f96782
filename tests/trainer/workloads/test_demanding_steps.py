"""Optimizers that need a closure, sparse gradients, and optimizers of newer torch: measured and resumed like others."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.recipe_check import built_recipe
from segue.trainer.ranks.ddp import total_norm
from segue.trainer.workloads.steps.step import begin_step
from tests.trainer.workloads.demanding import demanding
from tests.trainer.workloads.interrupted import assert_exact, killed_once, undisturbed

ROWS = 4
KINDS = [
    {"kind": "closure"},
    {"kind": "closure", "search": "strong_wolfe"},
    {"kind": "sparse"},
    {"kind": "sparse", "clip": 0.05},
    {"kind": "sparse scaled", "clip": 0.05},
    {"kind": "sparse adam"},
    {"kind": "muon and adafactor"},
    {"kind": "stepped by hand"},
]


@pytest.mark.matrix
@pytest.mark.parametrize("config", KINDS, ids=lambda config: " ".join(map(str, config.values())))
def test_a_killed_run_ends_as_an_undisturbed_one(fork_server, make_spec, tmp_path, config):
    spec = make_spec(
        run_id="demanding",
        recipe="tests.trainer.workloads.demanding:demanding",
        config=config | {"hang_at": 17, "once": str(tmp_path / "hung")},
        continuity={"rehearsal": "off", "witness_steps": ROWS},
    )
    history = killed_once(fork_server, spec, at=10, rows=ROWS)
    assert_exact(history, undisturbed(fork_server, spec), rows=ROWS)


def stepped(kind, *, clip=None, steps=12):
    """Gradient norms of some steps, and the weights afterwards."""
    seed_all(5)
    recipe = built_recipe(demanding, {"kind": kind, "clip": clip})
    batches = [batch for _ in range(2) for batch in recipe.data][:steps]
    norms = [begin_step(recipe, [batch], step=n + 1).read().outcome.grad_norm for n, batch in enumerate(batches)]
    return norms, [parameter.detach().clone() for parameter in recipe.model.parameters()]


@pytest.mark.parametrize("clip", [None, 0.05])
def test_sparse_gradients_are_measured_and_clipped_like_the_same_dense_ones(clip):
    sparse, dense = stepped("sparse", clip=clip), stepped("dense", clip=clip)
    assert sparse[0] == pytest.approx(dense[0], rel=1e-5)
    assert all(norm > 0.05 for norm in sparse[0]), "or nothing would be clipped"
    for one, other in zip(sparse[1], dense[1], strict=True):
        torch.testing.assert_close(one, other)


def test_a_row_that_is_stored_twice_counts_as_its_sum():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    assert not embedding.weight.grad.is_coalesced()
    assert float(total_norm([embedding.weight.grad])) == pytest.approx((4 * 2 + 1 * 2) ** 0.5)
    mixed = [embedding.weight.grad, torch.full((2,), 3.0)]
    assert float(total_norm(mixed)) == pytest.approx((10 + 18) ** 0.5)
    assert not embedding.weight.grad.is_coalesced(), "what the optimizer gets is left as it was"


def test_an_overflow_of_scaled_sparse_gradients_skips_the_update():
    seed_all(5)
    recipe = built_recipe(demanding, {"kind": "sparse scaled"})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    recipe = dataclasses.replace(recipe, scaler=scaler)
    before = [parameter.detach().clone() for parameter in recipe.model.parameters()]
    begin_step(recipe, [next(iter(recipe.data))], step=1).read()
    assert all(map(torch.equal, before, recipe.model.parameters()))
    assert scaler.get_scale() == 2.0**126


class NeedsLoss(torch.optim.SGD):
    """An optimizer of the user's whose step needs the loss."""

    def step(self, loss):
        return super().step(lambda: loss)


@pytest.mark.parametrize(("kind", "needed"), [(torch.optim.LBFGS, "closure"), (NeedsLoss, "loss")])
@pytest.mark.parametrize("has_scheduler", [False, True])
def test_with_a_loss_an_optimizer_whose_step_needs_an_argument_is_refused(kind, needed, has_scheduler):
    def build(config):
        recipe = demanding({"kind": "dense"})
        optimizer = kind(recipe.model.parameters(), lr=0.1)
        # Building a scheduler wraps the optimizer's step.
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5) if has_scheduler else None
        return dataclasses.replace(recipe, optimizer=optimizer, scheduler=scheduler)

    with pytest.raises(RecipeError) as refused:
        built_recipe(build, {})
    said = f"optimizer is a {kind.__name__}: its step needs {needed}, and segue calls optimizer.step() itself."
    assert f"{said} Fix: give `step` in place of `loss`" in str(refused.value)
