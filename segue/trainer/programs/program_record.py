"""The setup of a program. Each checkpoint records the setup. A resume compares the setup, but never restores the setup.

A program's setup has fewer parts than a recipe's setup: the code, and the modules and optimizers that the program
tracks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.continuity.program_code import passed_to_program, program_hashes
from segue.continuity.recipe_diff import BINDING, CODE, CONFIG, HYPERPARAMETERS, MODEL
from segue.spec import RunSpec
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.recipe_record import Looked, binding, in_words, named_parameters, settings_of_optimizer


class ProgramRecord:
    """The parts of a program's setup that are known before its first step."""

    def __init__(self, spec: RunSpec) -> None:
        assert spec.program is not None
        self._command, self._passed = spec.program.command, passed_to_program(spec)
        self._modules: dict[str, str] = {}
        self._settings: dict[str, Any] = {}

    def add(self, name: str, target: Any) -> None:
        """Record a tracked object as the program built it. The call must come before the object's state is restored."""
        if isinstance(target, nn.Module):
            modules = bare(target).named_modules()
            described = ((".".join(filter(None, (name, path))), module) for path, module in modules)
            self._modules |= {path: in_words(module) for path, module in described}
        elif isinstance(target, torch.optim.Optimizer):
            # Learning rates are compared in each step, and a program may compute them from its step.
            found = settings_of_optimizer(name, target).items()
            self._settings |= {path: value for path, value in found if not path.endswith((".lr", ".initial_lr"))}

    def components(self, objects: Mapping[str, Any]) -> dict[str, Component]:
        """Return the setup, with the names of `segue.continuity.recipe_diff` as keys. `objects` has all tracked
        objects."""
        fixed: dict[str, Any] = {
            CONFIG: self._passed,
            MODEL: {"modules": self._modules},
            HYPERPARAMETERS: self._settings,
        }
        if code := program_hashes(self._command, folder=Path.cwd()):
            fixed[CODE] = code  # An installed program has no code of the user's, and the verdict says so.
        found: dict[str, Component] = {name: Looked(partial(_same, tree)) for name, tree in fixed.items()}
        optimizers = {name: each for name, each in objects.items() if isinstance(each, torch.optim.Optimizer)}
        return found | {BINDING: Looked(lambda: binding(_parameters(objects), optimizers))}


def _parameters(objects: Mapping[str, Any]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters. The parameters of `model` have the same names as in an exported checkpoint."""
    for name, each in objects.items():
        if isinstance(each, nn.Module):
            start = "" if name == "model" else f"{name}."
            yield from ((start + path, parameter) for path, parameter in named_parameters(bare(each)))


def _same(tree: Any) -> Any:
    return tree
