"""Recipes whose structure changes while they train: what a resume builds again, and what it cannot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe

AT = 13
"""The step after which the structure changes."""


class Net(nn.Module):
    """Layers, a head whose weights may be tied, and what some models make while they train."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.inner = nn.Linear(4, 4)
        self.act: nn.Module = nn.ReLU()
        self.head = nn.Linear(4, 4)
        if kind == "tied":
            self.head.weight = self.inner.weight
        if kind == "lazy":
            self.head = nn.LazyLinear(4)
        self.spare = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("late", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "replaces buffers":
            self.seen = self.seen + x.detach().mean(0)
            self.late = self.seen * 2
            self.mask = torch.cat([self.mask, self.mask[:1]]) if len(self.mask) < 9 else self.mask
        if self.kind == "registers buffers" and not hasattr(self, "table"):
            self.register_buffer("table", torch.full((4,), 0.5), persistent=False)
            self.inner.register_buffer("kept", torch.zeros(4))
        if self.kind == "registers buffers":
            self.inner.kept += x.detach().mean(0)
            x = x * self.table + self.inner.kept * 0.01
        if self.kind == "grows a buffer":
            self.seen = torch.cat([self.seen, x.detach().mean()[None]])
            x = x + self.seen.mean() * 0.01
        if self.kind == "drops a buffer" and self.seen is not None:
            self.seen = None
        if self.kind == "makes a module" and not hasattr(self, "rotary"):
            self.rotary = Rotary()
        if self.kind == "makes a module":
            x = self.rotary(x)
        return self.head(self.act(self.inner(x)))


class Rotary(nn.Module):
    """A module without parameters, with a table that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.linspace(0.9, 1, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.angles


class Wrapped(nn.Module):
    """A layer and one more."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.more = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.more(self.inner(x))


def reshaped(config: dict[str, Any]) -> Recipe:
    """Config: kind (of a change below), hang_at (step), once (a file: hangs once)."""
    kind = config["kind"]
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    model = Net(kind)
    if kind == "compiled":
        model.compile(backend="eager")
    trained = model.inner.parameters() if kind in BOUND else model.parameters()
    optimizer = torch.optim.AdamW(model.named_parameters() if kind == "named" else trained, lr=0.01)
    optimizer = optimizer if kind != "named" else torch.optim.AdamW([*model.inner.named_parameters()], lr=0.01)
    average = torch.optim.swa_utils.AveragedModel(model) if kind != "lazy" else None

    def after_step(step: int) -> None:
        if step == AT and kind in CHANGES:
            CHANGES[kind](model, optimizer)
        if average is not None and kind == "averaged":
            average.update_parameters(model)
        while step == config.get("hang_at") and not Path(config["once"]).exists():
            Path(config["once"]).touch()
            time.sleep(3600)

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(TensorDataset(inputs), batch_size=8, shuffle=True),
        loss=lambda model, batch: (model(batch[0]) - batch[0].flip(1)).square().mean(),
        extra={"average": average} if kind == "averaged" else {},
        after_step=after_step,
    )


def _frozen(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.inner.requires_grad_(False)
    model.act.eval()
    optimizer.param_groups[0]["lr"] = 0.003


def _data_swapped(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.inner.weight.data = model.inner.weight.data * 0.5


def _unheld(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach() * 0.5, requires_grad=False)


def _group_added(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [*model.head.parameters()], "lr": 0.02})


def _named_group_added(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [*model.head.named_parameters()], "lr": 0.02})


def _appended(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].extend(model.head.parameters())


def _removed(model: Net, optimizer: torch.optim.Optimizer) -> None:
    bias = optimizer.param_groups[0]["params"].pop()
    del optimizer.state[bias]


def _rebound(model: Net, optimizer: torch.optim.Optimizer) -> None:
    former = model.inner.weight
    model.inner.weight = nn.Parameter(former.detach().clone())
    held = optimizer.param_groups[0]["params"]
    held[[*map(id, held)].index(id(former))] = model.inner.weight
    optimizer.state[model.inner.weight] = optimizer.state.pop(former)


def _same_kind(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.act = nn.ReLU()


def _module_made(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.metric = nn.Sequential(Rotary(), nn.L1Loss())


def _removed_with_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].pop()


def _foreign(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def _replaced(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.inner.weight = nn.Parameter(model.inner.weight.detach().clone())


def _tied(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.head.weight = model.inner.weight


def _pruned(model: Net, optimizer: torch.optim.Optimizer) -> None:
    prune.l1_unstructured(model.inner, "weight", 0.5)


def _parametrized(model: Net, optimizer: torch.optim.Optimizer) -> None:
    parametrizations.weight_norm(model.inner)


def _layer_added(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.inner = Wrapped(model.inner)


def _layer_replaced(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.act = nn.GELU()


def _layer_removed(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.head = nn.Identity()


def _widened(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.spare.data = torch.zeros(6)


def _halved(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.spare.data = model.spare.data.double()


CHANGES = {
    "frozen": _frozen,
    "data swapped": _data_swapped,
    "unheld": _unheld,
    "group added": _group_added,
    "named": _named_group_added,
    "appended": _appended,
    "removed": _removed,
    "rebound": _rebound,
    "same kind": _same_kind,
    "module made late": _module_made,
    "removed with state": _removed_with_state,
    "foreign": _foreign,
    "replaced": _replaced,
    "tied late": _tied,
    "pruned": _pruned,
    "parametrized": _parametrized,
    "layer added": _layer_added,
    "layer replaced": _layer_replaced,
    "layer removed": _layer_removed,
    "widened": _widened,
    "other type": _halved,
}
BOUND = ("unheld", "group added", "named", "appended")
"""Kinds whose optimizer begins without the head."""
REFUSED = {
    "removed with state": "optimizer has state of parameters that it no longer holds, which torch cannot save",
    "foreign": "optimizer holds a tensor that is not a parameter of the model since",
    "replaced": "inner.weight was replaced by another tensor, and the optimizer still holds the old tensor",
    "tied late": "head.weight is now one tensor with inner.weight",
    "pruned": "inner.weight is no longer a parameter; inner.weight_orig is a new parameter",
    "parametrized": "module inner.parametrizations (ModuleDict()) is new; inner.weight is no longer a parameter",
    "layer added": "module inner was Linear(in_features=4, out_features=4, bias=True), now Wrapped()",
    "layer replaced": "module act was ReLU(), now GELU(approximate='none')",
    "layer removed": "module head was Linear(in_features=4, out_features=4, bias=True), now Identity()",
    "widened": "spare was float32[4], now float32[6]",
    "other type": "spare was float32[4], now float64[4]",
}
RESTORED = (
    *(name for name in CHANGES if name not in REFUSED),
    "tied",
    "lazy",
    "compiled",
    "averaged",
    "replaces buffers",
    "registers buffers",
    "grows a buffer",
    "drops a buffer",
    "makes a module",
)
