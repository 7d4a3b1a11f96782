"""Hooks, modules and settings that other code changed between the restore and the first step. No resume restores them.

The search is made before the first step. The results of the search are named as the cause only if the replay differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from segue.continuity.recipe_diff import HYPERPARAMETERS, MODEL
from segue.records import Finding
from segue.user_objects import in_words

_HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_CHANNEL = "setup"
FIX = "other code changes it after the restore: change it in build, before the state is restored, or only in steps"


def hooks_of(model: nn.Module) -> Counter[str]:
    """Count the hooks of each module and parameter, by path and kind of hook."""
    found: Counter[str] = Counter()
    for name, module in model.named_modules():
        for table in _HOOKS_OF_MODULES:
            if count := _count(vars(module).get(table)):
                found[f"{_path(name)} ({table.strip('_').replace('_', ' ')})"] = count
    for name, parameter in model.named_parameters():
        for table in _HOOKS_OF_TENSORS:
            if count := _count(getattr(parameter, table, None)):
                found[f"{_path(name)} (hooks of its gradient)"] += count
    return found


def _path(name: str) -> str:
    return f"model.{name}" if name else "model"


def _count(hooks: Any) -> int:
    """Count the hooks without segue's own hooks, which measure a step."""
    return sum(not _is_segues(hook) for hook in hooks.values()) if isinstance(hooks, Mapping) else 0


def _is_segues(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("segue.")


class OtherHands:
    """The hooks and modules of a model as built. They are compared with the hooks and modules before the first step."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._modules = model, dict(model.named_modules())
        self._built = hooks_of(model)

    def findings(self, settings: Mapping[str, str]) -> Iterator[Finding]:
        """Yield findings about hooks, modules, and `settings` (by path) that have changed since the build."""
        now = hooks_of(self._model)
        for path in sorted({*now, *self._built}):
            if now[path] != self._built[path]:
                said = f"{path}: {self._built[path]} as built, now {now[path]}"
                yield Finding(component=MODEL, channel=_CHANNEL, sentence=said, fix=FIX)
        modules = dict(self._model.named_modules())
        for name, built in self._modules.items():
            if (module := modules.get(name)) is not built:
                said = f"{_path(name)} was a {type(built).__qualname__}, now {in_words(module)}"
                yield Finding(component=MODEL, channel=_CHANNEL, sentence=said, fix=FIX)
        for path, change in settings.items():
            yield Finding(component=HYPERPARAMETERS, channel=_CHANNEL, sentence=f"{path} {change}", fix=FIX)
