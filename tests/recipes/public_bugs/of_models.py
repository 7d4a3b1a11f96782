"""Models and averages that came back as others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import Average
from tests.recipes.public_bugs.changes import Config, average_with, train_with


def average_started_anew(recipe: Recipe, config: Config) -> None:
    """The average is loaded, and then overwritten by the setup that a new run needs."""

    class StartedAnew(Average):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self._values = {name: p.detach().clone() for name, p in self._model.named_parameters()}

    average_with(recipe, StartedAnew(recipe.model))


def average_loaded_as_the_weights(recipe: Recipe, config: Config) -> None:
    """The model goes on from its average, which is good to evaluate and not what was being trained."""

    class CopiedToTheModel(Average):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self._model.load_state_dict(self._values, strict=False)

    average_with(recipe, CopiedToTheModel(recipe.model))


def prefix_of_compile_and_not_strict(recipe: Recipe, config: Config) -> None:
    """The names carry the wrapper's prefix, the load is not strict, so nothing matches and no error is raised."""

    class Compiled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._orig_mod = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._orig_mod(x)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return self._orig_mod.load_state_dict(state_dict, strict=False)

    recipe.model = Compiled(recipe.model)


def tie_lost(recipe: Recipe, config: Config) -> None:
    """Loading makes new tensors; the head, until then the embedding's own weight, is a second one from here on."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.embedding(x))).mean(1, keepdim=True)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            found = super().load_state_dict(state_dict, strict)
            self.head.weight = nn.Parameter(state_dict["head.weight"].clone())
            return found

    recipe.model = Tied()
    train_with(recipe, torch.optim.AdamW(recipe.model.parameters(), lr=1e-2))
    average_with(recipe, Average(recipe.model))


def frozen_again_by_the_build(recipe: Recipe, config: Config) -> None:
    """The build freezes the first layer, step 5 lets it go; a resume builds, and never sees step 5."""
    recipe.model[0].requires_grad_(False)
    update = recipe.after_step

    def after_step(step: int) -> None:
        update(step)
        if step == 5:
            recipe.model[0].requires_grad_(True)

    recipe.after_step = after_step


def norm_trained_again_by_train(recipe: Recipe, config: Config) -> None:
    """Step 5 fixes the norm's statistics by its eval mode; the loop that resumes calls `model.train()`."""
    update = recipe.after_step

    def after_step(step: int) -> None:
        update(step)
        if step == 5:
            recipe.model[1].eval()

    recipe.after_step = after_step
