"""An example recipe on synthetic data, written by `segue init`. Replace its parts with your own.

python train.py                        the plain loop below, without segue's checkpoints
segue drill train:build                kill it, resume it, compare the result bit for bit
segue run train:build --steps 300      train through Prefect, in segments that survive preemption
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from segue import Recipe

FEATURES = 16


def build(config: dict[str, Any]) -> Recipe:
    """Make everything that training needs.

    Every attempt calls this function, so equal configs must give equal objects.
    """
    inputs, targets = synthetic_data(4096)
    train, held_out = TensorDataset(inputs[:3840], targets[:3840]), (inputs[3840:], targets[3840:])
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("learning_rate", 0.003))

    def evaluate(model: nn.Module) -> float:
        return float(nn.functional.mse_loss(model(held_out[0]), held_out[1]))

    return Recipe(
        model=model,
        optimizer=optimizer,
        # segue draws the order of the samples itself, so that a resume continues within the epoch.
        data=DataLoader(train, batch_size=64, shuffle=True),
        loss=loss,
        # Stepped after every optimizer step.
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5),
        # Called before every commit, in eval mode and without gradients.
        evaluate=evaluate,
        clip_grad_norm=1.0,
        # Anything else that changes while training and has a state_dict goes into `extra={"name": object}`.
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the scalar to minimize, for a batch on the model's device."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def synthetic_data(count: int) -> tuple[Tensor, Tensor]:
    """Return synthetic samples from a separate generator, so that they are equal in every process."""
    generator = torch.Generator().manual_seed(2013)
    inputs = torch.randn(count, FEATURES, generator=generator)
    noise = torch.randn(count, 1, generator=generator)
    return inputs, inputs[:, :4].sin().sum(dim=1, keepdim=True) + 0.1 * noise


def main(steps: int = 300) -> None:
    """Train in a plain loop, as `python train.py` does."""
    torch.manual_seed(0)
    recipe = build({})
    done = 0
    while done < steps:
        for batch in recipe.data:
            value = recipe.loss(recipe.model, batch)
            recipe.optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(recipe.model.parameters(), 1.0)
            recipe.optimizer.step()
            recipe.scheduler.step()
            done += 1
            if done % 100 == 0:
                print(f"step {done} of {steps}, loss {float(value):.4f}")
            if done == steps:
                return


if __name__ == "__main__":
    main()
