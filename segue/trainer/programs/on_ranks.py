"""A program on several ranks: which state all ranks share, and which state each rank has for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from segue.checkpoints.format.names import of_rank
from segue.errors import SessionError
from segue.trainer.programs.measures import parameters_of
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component

_ANY_ORDER_IS_THE_SAME = 2
"""Up to this many summands, a sum does not depend on their order."""


def named_on(ranks: Ranks, target: Any, components: Mapping[str, Component]) -> dict[str, Component]:
    """The components of a tracked object, by names that distinguish the ranks unless they share its state.

    Modules and optimizers are shared: each step compares the norms of gradients and parameters over all ranks.
    """
    if isinstance(target, nn.Module | torch.optim.Optimizer):
        return dict(components)
    return {of_rank(name, ranks.rank): component for name, component in components.items()}


def refuse_changing_sums(name: str, target: Any, ranks: Ranks) -> None:
    """Refuse DDP that sums in one order in an attempt's first step and in another order later: no resume repeats that.

    By default DDP rearranges its buckets after the first step; `find_unused_parameters` keeps them.

    Raises:
        SessionError: the module is such a DDP.
    """
    if ranks.count <= _ANY_ORDER_IS_THE_SAME or not isinstance(target, DistributedDataParallel):
        return
    if not target.find_unused_parameters or target.static_graph:
        what = (
            f"run.track({name}=...) got DistributedDataParallel over {ranks.count} ranks, which rearranges its buckets "
            "after the first step: a resumed run would sum in another order than before, and differ by a bit."
        )
        raise SessionError(what=what, fix="give it find_unused_parameters=True, and leave static_graph off.")


def same_on_every_rank(objects: Mapping[str, Any]) -> Callable[[str], bool]:
    """A predicate: whether all ranks hold the same values of a state tensor, because DDP keeps them equal."""
    modules = {name: each for name, each in objects.items() if isinstance(each, DistributedDataParallel)}
    parameters = {f"{name}.state.{path}" for name, each in modules.items() for path, _ in bare(each).named_parameters()}
    held = {id(parameter) for each in modules.values() for parameter in each.parameters()}
    optimizers = {name: each for name, each in objects.items() if isinstance(each, torch.optim.Optimizer)}
    states = tuple(f"{name}." for name, each in optimizers.items() if all(id(p) in held for p in parameters_of(each)))
    return lambda tensor: tensor in parameters or tensor.startswith(states)
