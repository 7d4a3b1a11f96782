"""Everything that must come back, as named components with one way to capture and one to restore."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from segue.errors import RecipeError
from segue.trainer.recipe import Recipe, Stateful

PROGRESS = "progress"
RNG_PREFIX = "rng."


class Component(Protocol):
    """One piece of state."""

    def capture(self) -> Any:
        """The state as a tree of data; tensors are the live ones."""
        ...

    def restore(self, tree: Any) -> None:
        """Put the state back into the live object."""
        ...


@dataclass
class Progress:
    """Where the run is."""

    step: int = 0
    samples_seen: int = 0

    def capture(self) -> Any:
        return {"step": self.step, "samples_seen": self.samples_seen}

    def restore(self, tree: Any) -> None:
        self.step, self.samples_seen = int(tree["step"]), int(tree["samples_seen"])


class StatefulComponent:
    """Anything with `state_dict` and `load_state_dict`."""

    def __init__(self, target: Stateful) -> None:
        self._target = target

    def capture(self) -> Any:
        return self._target.state_dict()

    def restore(self, tree: Any) -> None:
        self._target.load_state_dict(tree)


class ModelState:
    """Parameters and buffers, with the versions by which modules know an old state from a new one."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def capture(self) -> Any:
        state = self._model.state_dict()
        return {"state": dict(state), "metadata": dict(getattr(state, "_metadata", {}))}

    def restore(self, tree: Any) -> None:
        state: OrderedDict[str, Any] = OrderedDict(tree["state"])
        state._metadata = tree["metadata"]  # type: ignore[attr-defined]
        self._model.load_state_dict(state)


class ModelModes:
    """Train or eval mode of each module, and which parameters are trained."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def capture(self) -> Any:
        return {
            "training": {name: module.training for name, module in self._model.named_modules()},
            "requires_grad": {name: parameter.requires_grad for name, parameter in self._model.named_parameters()},
        }

    def restore(self, tree: Any) -> None:
        for name, module in self._model.named_modules():
            module.training = tree["training"][name]
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(tree["requires_grad"][name])


class TorchRng:
    """The CPU stream."""

    def capture(self) -> Any:
        return torch.get_rng_state()

    def restore(self, tree: Any) -> None:
        torch.set_rng_state(tree)


class CudaRng:
    """The streams of all visible accelerators."""

    def capture(self) -> Any:
        return torch.cuda.get_rng_state_all()

    def restore(self, tree: Any) -> None:
        torch.cuda.set_rng_state_all(tree)


class PythonRng:
    """The `random` module's stream."""

    def capture(self) -> Any:
        version, words, gauss = random.getstate()
        return {"version": version, "words": np.array(words, np.int64), "gauss": gauss}

    def restore(self, tree: Any) -> None:
        random.setstate((tree["version"], tuple(int(word) for word in tree["words"]), tree["gauss"]))


class NumpyRng:
    """NumPy's legacy global stream."""

    def capture(self) -> Any:
        return np.random.get_state(legacy=False)

    def restore(self, tree: Any) -> None:
        np.random.set_state(tree)


def rng_components() -> dict[str, Component]:
    """Every global random stream of this process."""
    streams: dict[str, Component] = {"torch": TorchRng(), "python": PythonRng(), "numpy": NumpyRng()}
    if torch.cuda.is_available():
        streams["cuda"] = CudaRng()
    return {f"{RNG_PREFIX}{name}": stream for name, stream in streams.items()}


def components_of(recipe: Recipe, progress: Progress, *, name: str) -> dict[str, Component]:
    """All components of a recipe, in the order in which they are restored: the random streams come last.

    Raises:
        RecipeError: the optimizer trains tensors that are not parameters of the model.
    """
    _check_binding(recipe, name=name)
    components: dict[str, Component] = {
        "model": ModelState(recipe.model),
        "modes": ModelModes(recipe.model),
        "optimizer": StatefulComponent(recipe.optimizer),
    }
    if recipe.scheduler is not None:
        components["scheduler"] = StatefulComponent(recipe.scheduler)
    if recipe.scaler is not None:
        components["scaler"] = StatefulComponent(recipe.scaler)
    for key, target in recipe.extra.items():
        components[f"extra.{key}"] = StatefulComponent(target)
    return components | {PROGRESS: progress} | rng_components()


def capture(components: Mapping[str, Component]) -> dict[str, Any]:
    """The state trees of all components; tensors are the live ones."""
    return {name: component.capture() for name, component in components.items()}


def _check_binding(recipe: Recipe, *, name: str) -> None:
    live = {id(parameter) for parameter in recipe.model.parameters()}
    held = [parameter for group in recipe.optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in live for parameter in held)
    if foreign:
        why = f"{foreign} of the optimizer's {len(held)} tensors are not parameters of the model; build it from them."
        raise RecipeError(recipe=name, why=why)
