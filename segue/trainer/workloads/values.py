"""Components of values that have no state_dict: dicts of plain values, and random generators."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from segue.trainer.workloads.components import Component, PythonRng


class PlainValues:
    """A dict of plain values, restored in place."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def capture(self) -> Any:
        return dict(self._values)

    def restore(self, tree: Any) -> None:
        restored = {key: placed(value, self._values.get(key)) for key, value in tree.items()}
        self._values.clear()
        self._values.update(restored)


class TorchGenerator:
    """A random generator of torch."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def capture(self) -> Any:
        return self._generator.get_state()

    def restore(self, tree: Any) -> None:
        self._generator.set_state(tree)


class NumpyGenerator:
    """A random generator of NumPy."""

    def __init__(self, generator: np.random.Generator | np.random.RandomState) -> None:
        self._generator = generator

    def capture(self) -> Any:
        if isinstance(self._generator, np.random.RandomState):
            return self._generator.get_state(legacy=False)
        return self._generator.bit_generator.state

    def restore(self, tree: Any) -> None:
        if isinstance(self._generator, np.random.RandomState):
            self._generator.set_state(tree)
        else:
            self._generator.bit_generator.state = tree


def component_of_value(target: Any) -> Component | None:
    """The component of a dict or a random generator; None for anything else."""
    if isinstance(target, torch.Generator):
        return TorchGenerator(target)
    if isinstance(target, (np.random.Generator, np.random.RandomState)):
        return NumpyGenerator(target)
    if isinstance(target, random.Random):
        return PythonRng(target)
    return PlainValues(target) if type(target) is dict else None


def placed(value: Any, live: Any) -> Any:
    """A restored value on the devices of the live one."""
    if isinstance(value, torch.Tensor):
        return value.to(live.device) if isinstance(live, torch.Tensor) else value
    if type(value) in (list, tuple) and isinstance(live, (list, tuple)) and len(value) == len(live):
        return type(value)(map(placed, value, live))
    if isinstance(value, dict) and isinstance(live, Mapping):
        return {key: placed(item, live.get(key)) for key, item in value.items()}
    return value
