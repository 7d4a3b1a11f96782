"""Resumes that public projects got wrong, written as those projects had them; each mends into a plain tiny recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from segue.testing.recipes import Average, tiny
from segue.trainer.recipe import Recipe

Config = dict[str, Any]


def build(config: Config) -> Recipe:
    """Config: bug (which), marker (a file that exists from the second build on), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name not in {"bug", "marker"}})
    BUGS[config["bug"]](recipe, config)
    return recipe


def is_built_again(config: Config) -> bool:
    """Whether this process is a later one: for bugs that need another machine or another start of Python."""
    marker = Path(config["marker"])
    again = marker.exists()
    marker.touch()
    return again


def scaler_made_after_the_load(recipe: Recipe, config: Config) -> None:
    """The trainer's `fit` made the scaler, after the checkpoint had been loaded into the one before."""

    class MadeByFit(torch.amp.GradScaler):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            super().load_state_dict(_scaler().state_dict())

    recipe.scaler = _scaler(MadeByFit)


def growth_counter_not_saved(recipe: Recipe, config: Config) -> None:
    """The scale is saved; how many steps ago it last grew is not."""

    class NoCounter(torch.amp.GradScaler):
        def state_dict(self) -> dict[str, Any]:
            return {name: value for name, value in super().state_dict().items() if name != "_growth_tracker"}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict({**state_dict, "_growth_tracker": 0})

    recipe.scaler = _scaler(NoCounter)


def moments_filled_into_a_fresh_optimizer(recipe: Recipe, config: Config) -> None:
    """What is loaded fills the slots that are there; an optimizer has none before its first step."""

    class FilledInPlace(torch.optim.AdamW):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            template = self.state_dict()["state"]
            kept = {slot: state_dict["state"][slot] for slot in template}
            super().load_state_dict({**state_dict, "state": kept})

    _train_with(recipe, FilledInPlace(recipe.model.parameters(), lr=1e-2))


def average_started_anew(recipe: Recipe, config: Config) -> None:
    """The average is loaded, and then overwritten by the setup that a new run needs."""

    class StartedAnew(Average):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self._values = {name: p.detach().clone() for name, p in self._model.named_parameters()}

    _average_with(recipe, StartedAnew(recipe.model))


def average_loaded_as_the_weights(recipe: Recipe, config: Config) -> None:
    """The model goes on from its average, which is good to evaluate and not what was being trained."""

    class CopiedToTheModel(Average):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self._model.load_state_dict(self._values, strict=False)

    _average_with(recipe, CopiedToTheModel(recipe.model))


def prefix_of_compile_and_not_strict(recipe: Recipe, config: Config) -> None:
    """The names carry the wrapper's prefix, the load is not strict, so nothing matches and nobody says so."""

    class Compiled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._orig_mod = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._orig_mod(x)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return self._orig_mod.load_state_dict(state_dict, strict=False)

    recipe.model = Compiled(recipe.model)


def scheduler_resets_the_rate(recipe: Recipe, config: Config) -> None:
    """Optimizer first, scheduler second, and the scheduler puts its initial rate back into the optimizer."""

    class Resets(torch.optim.lr_scheduler.CosineAnnealingLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
                group["lr"] = lr

    recipe.scheduler = Resets(recipe.optimizer, T_max=500)


def schedule_from_the_current_rate(recipe: Recipe, config: Config) -> None:
    """The schedule takes the optimizer's rate as its base: right in a new run, far too small in a resumed one."""

    class FromCurrent:
        def __init__(self) -> None:
            self._base: float | None = None
            self._steps = 0

        def step(self) -> None:
            (group,) = recipe.optimizer.param_groups
            self._base = group["lr"] if self._base is None else self._base
            self._steps += 1
            group["lr"] = self._base * 0.95**self._steps

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self._steps}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._steps = state_dict["steps"]

    recipe.scheduler = FromCurrent()


def parameters_in_another_order(recipe: Recipe, config: Config) -> None:
    """The parameters come out of a set; the optimizer knows them by their number alone."""
    parameters = list(recipe.model.parameters())
    if is_built_again(config):
        _, bias, weight, *_ = range(len(parameters))
        parameters[bias], parameters[weight] = parameters[weight], parameters[bias]  # Both of the same shape.
    _train_with(recipe, torch.optim.AdamW(parameters, lr=1e-2))


def masters_rebuilt_from_bf16(recipe: Recipe, config: Config) -> None:
    """fp32 masters are not saved; the resumed run rounds them to what bf16 kept."""

    class Masters(torch.optim.Optimizer):
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters, {"lr": 1e-2})
            self._live = parameters
            self._masters = [p.detach().float().requires_grad_() for p in parameters]
            self._inner = torch.optim.AdamW(self._masters, lr=1e-2)

        def step(self, closure: Any = None) -> None:
            for live, master in zip(self._live, self._masters, strict=True):
                master.grad = None if live.grad is None else live.grad.float()
            self._inner.step()
            self._copy(to=self._live, of=self._masters)

        def state_dict(self) -> dict[str, Any]:
            return self._inner.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._inner.load_state_dict(state_dict)
            self._copy(to=self._masters, of=self._live)

        @torch.no_grad()
        def _copy(self, *, to: list[Any], of: list[Any]) -> None:
            for target, source in zip(to, of, strict=True):
                target.copy_(source)

    recipe.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).bfloat16()
    recipe.optimizer, recipe.scheduler = Masters(list(recipe.model.parameters())), None
    inner = recipe.loss
    recipe.loss = lambda model, batch: inner(lambda x: model(x.bfloat16()).float(), batch)
    recipe.evaluate = None
    _average_with(recipe, Average(recipe.model))


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
    _train_with(recipe, torch.optim.AdamW(recipe.model.parameters(), lr=1e-2))
    _average_with(recipe, Average(recipe.model))


def seeded_at_the_first_batch(recipe: Recipe, config: Config) -> None:
    """The data set seeds the global streams when it is first read: after the checkpoint has put them back."""
    inner = recipe.data.dataset

    class Seeds(Dataset[Any]):
        ready = False

        def __len__(self) -> int:
            return len(inner)

        def __getitem__(self, index: int) -> Any:
            if not self.ready:
                torch.manual_seed(1234)
                self.ready = True
            return inner[index]

    recipe.data = DataLoader(Seeds(), batch_size=32, shuffle=True)


def generator_of_the_data_set(recipe: Recipe, config: Config) -> None:
    """Noise from a generator of the data set's own, which starts again with every process."""
    inner = recipe.data.dataset

    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self._generator = np.random.default_rng(0)

        def __len__(self) -> int:
            return len(inner)

        def __getitem__(self, index: int) -> Any:
            x, y = inner[index]
            return x + torch.from_numpy(self._generator.normal(size=8).astype(np.float32)), y

    recipe.data = DataLoader(Noisy(), batch_size=32, shuffle=True)


def batch_size_found_anew(recipe: Recipe, config: Config) -> None:
    """The batch size is what fits into memory; the machine of the second attempt has less of it."""
    fits = 16 if is_built_again(config) else 32
    recipe.data = DataLoader(recipe.data.dataset, batch_size=fits, shuffle=True)


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
    """Step 5 fixes the norm's statistics by its eval mode; the loop that resumes says `model.train()`."""
    update = recipe.after_step

    def after_step(step: int) -> None:
        update(step)
        if step == 5:
            recipe.model[1].eval()

    recipe.after_step = after_step


def _scaler(kind: type[torch.amp.GradScaler] = torch.amp.GradScaler) -> torch.amp.GradScaler:
    return kind("cpu", init_scale=16.0, growth_interval=7)


def _train_with(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    recipe.optimizer = optimizer
    recipe.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)


def _average_with(recipe: Recipe, average: Average) -> None:
    recipe.extra, recipe.after_step = {"average": average}, average.update


BUGS: dict[str, Callable[[Recipe, Config], None]] = {
    bug.__name__: bug
    for bug in (
        scaler_made_after_the_load,
        growth_counter_not_saved,
        moments_filled_into_a_fresh_optimizer,
        average_started_anew,
        average_loaded_as_the_weights,
        prefix_of_compile_and_not_strict,
        scheduler_resets_the_rate,
        schedule_from_the_current_rate,
        parameters_in_another_order,
        masters_rebuilt_from_bf16,
        tie_lost,
        seeded_at_the_first_batch,
        generator_of_the_data_set,
        batch_size_found_anew,
        frozen_again_by_the_build,
        norm_trained_again_by_train,
    )
}
