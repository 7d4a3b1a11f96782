"""The definition of a fault: an edit of the source, or an error at a named point of a resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from segue.checkpoints.format.snapshot import digest, take
from segue.data.loader import Feed
from segue.recipe import Recipe
from segue.trainer.workloads.components import Component

NAMED_REPLAY = frozenset({"outside the checkpoint"})
SETUP_CODE = frozenset({"setup.code", "setup.hyperparameters", "setup.model"})
CODE = NAMED_REPLAY | SETUP_CODE
"""Components that a finding may name if the code of a step changed."""
LATE = NAMED_REPLAY | {"optimizer"}
"""Components that a finding may name if state changes after the comparison of the digests."""
ORDER = frozenset({"data order", "data.next", "setup.data", "setup.hyperparameters", "progress"})
CONTENT = frozenset({"data content", "data.next", "setup.data", "setup.code", "setup.hyperparameters"})


class NotApplicableError(Exception):
    """The fault changes nothing in this resume."""


class Forgotten:
    """Replaces a state tree that is not restored."""


@dataclass
class Live:
    """The objects of a running attempt that a fault may use."""

    recipe: Recipe
    components: Mapping[str, Component] = field(default_factory=dict)
    older: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """State trees of this number of steps before the parent. Each call decodes new copies."""
    seed: int = 0
    steps_to_go: int = 0

    @property
    def chance(self) -> random.Random:
        """A separate random stream, because the global stream is under test."""
        return random.Random(self.seed)


TreeEdit = Callable[[Any, Live], Any]


@dataclass(frozen=True)
class Fault:
    """The parts of a fault. Each part is optional. If a part would change nothing, it raises NotApplicableError."""

    edit: Mapping[str, Any] = field(default_factory=dict)
    """Edit of the source between the two attempts."""
    built: Callable[[Recipe], None] | None = None
    """Change of the return value of `build` before segue uses it."""
    trees: Mapping[str, TreeEdit] = field(default_factory=dict)
    """The tree that `load_state_dict` of a component gets in place of the stored tree, or Forgotten(), by component."""
    restored: Callable[[Live], None] | None = None
    """Change immediately after the restore, before the digests are compared."""
    checked: Callable[[Live], None] | None = None
    """Change immediately before the first batch is drawn, after the digests were compared."""
    replayed: Callable[[Live], None] | None = None
    """Change immediately after the first replayed step. The digests are not compared again before the steps are
    compared."""
    fed: Callable[[Feed], None] | None = None
    """Change of the feed of the resumed attempt."""


@dataclass(frozen=True)
class Kind:
    """One kind of wrong resume, and the names that a finding may give it."""

    name: str
    family: str
    fault: Fault
    components: frozenset[str]
    needs: frozenset[str] = frozenset()
    """Features without which the fault changes nothing (`benchmarks.continuity.recipes.FEATURES`)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Config of both attempts."""

    @property
    def is_foregone(self) -> bool:
        """Whether the fault edits the tree that a component loads, so that the component's own digest must show the
        fault."""
        return bool(self.fault.trees)

    def applies_to(self, features: frozenset[str]) -> bool:
        return self.needs <= features


class EditedComponent:
    """A component whose restore gets another tree."""

    def __init__(self, name: str, inner: Component, edit: TreeEdit, live: Live) -> None:
        self._name, self._inner, self._edit, self._live = name, inner, edit, live

    def capture(self) -> Any:
        return self._inner.capture()

    def restore(self, tree: Any) -> None:
        """Restore the edited tree.

        Raises:
            NotApplicableError: the edited tree is equal to the stored tree.
        """
        before = self._digest(tree)
        edited = self._edit(tree, self._live)
        is_forgotten = isinstance(edited, Forgotten)
        if self._digest(self._inner.capture() if is_forgotten else edited) == before:
            raise NotApplicableError(self._name)
        if not is_forgotten:
            self._inner.restore(edited)

    def _digest(self, tree: Any) -> str:
        return digest(take({self._name: tree})).components[self._name]


def forgotten(tree: Any, live: Live) -> Any:
    return Forgotten()


def stale(name: str, *, steps: int) -> TreeEdit:
    """The state of this number of steps earlier."""
    return lambda _, live: live.older[steps][name]


def each_tensor(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The tree with every floating tensor changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree) if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: each_tensor(value, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(each_tensor(value, change) for value in tree)
    return tree


def through_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).to(tensor.dtype)


def flip_bit(tensor: torch.Tensor, chance: random.Random) -> None:
    """Flip the lowest bit of one float32 element, in place."""
    bits = tensor.detach().view(torch.int32).reshape(-1)
    bits[chance.randrange(bits.numel())] ^= 1


def largest(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The largest floating tensor."""
    return max((tensor for tensor in tensors.values() if tensor.is_floating_point()), key=torch.numel)


def put_nan(tensor: torch.Tensor, chance: random.Random) -> None:
    """Set one element to NaN, in place."""
    tensor.reshape(-1)[chance.randrange(tensor.numel())] = torch.nan


def without(field: str) -> Callable[[Recipe], None]:
    """Remove this field from the recipe."""
    return lambda recipe: setattr(recipe, field, None)


def void(value: object) -> None:
    """Accept a value and return nothing."""
