"""Kinds of values that a program's loop carries, each as a whole script around a few lines."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

_HEAD = """\
import collections, copy, itertools, math, random, time
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import segue

torch.manual_seed(0)
x = torch.randn(96, 8)
y = x.sum(1, keepdim=True) + 0.1 * torch.randn(96, 1)


def draw():
    rows = torch.randint(96, (16,))
    return x[rows], y[rows]


def learn(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def set_lr(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr

"""
_OBJECTS = """\
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
run.track(model=model, optimizer=optimizer)
"""
_STEP = """\
a, b = draw()
loss = nn.functional.mse_loss(model(a), b)
"""
_UPDATE = """\
learn(optimizer, loss)
run.report(loss=loss)
"""


@dataclass(frozen=True)
class Kind:
    """One program whose resume loses a value, or a sound one."""

    name: str
    variables: tuple[str, ...]
    """Names of which a finding must contain one; empty: nothing is lost."""
    source: str
    steps: int = 40

    @property
    def is_sound(self) -> bool:
        return not self.variables


def _lines(text: str, by: int = 4) -> str:
    return indent(dedent(text).strip("\n") + "\n", " " * by) if text.strip() else ""


def in_steps(
    name: str, *variables: str, before: str = "", loss: str = "", body: str = "", after: str = "", top: str = ""
) -> Kind:
    """A loop over `run.steps` in a function; `loss` changes the loss before the update, `body` follows it."""
    source = (
        f"{_HEAD}{dedent(top)}\n\ndef main():\n{_lines(_OBJECTS)}{_lines(before)}    for step in run.steps(40):\n"
        f"{_lines(_STEP, 8)}{_lines(loss, 8)}{_lines(_UPDATE, 8)}{_lines(body, 8)}{_lines(after)}\n\n"
        "with segue.session() as run:\n    main()\n"
    )
    return Kind(name, variables, source)


def at_top(name: str, *variables: str, before: str = "", loss: str = "", body: str = "", after: str = "") -> Kind:
    """A loop over `run.steps` at the top level of the script."""
    source = (
        f"{_HEAD}run = segue.session()\n{_OBJECTS}{dedent(before)}\nfor step in run.steps(40):\n"
        f"{_lines(_STEP)}{_lines(loss)}{_lines(_UPDATE)}{_lines(body)}\n{dedent(after)}"
    )
    return Kind(name, variables, source)


def in_epochs(
    name: str,
    *variables: str,
    before: str = "",
    begin: str = "",
    loss: str = "",
    body: str = "",
    end: str = "",
    after: str = "",
    top: str = "",
) -> Kind:
    """Epochs of six batches in one function."""
    source = (
        f"{_HEAD}{dedent(top)}\n\ndef main():\n{_lines(_OBJECTS)}"
        "    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)\n"
        f"{_lines(before)}    for epoch in run.epochs(6):\n{_lines(begin, 8)}        for a, b in run.batches(loader):\n"
        f"            loss = nn.functional.mse_loss(model(a), b)\n{_lines(loss, 12)}{_lines(_UPDATE, 12)}"
        f"{_lines(body, 12)}{_lines(end, 8)}{_lines(after)}\n\nwith segue.session() as run:\n    main()\n"
    )
    return Kind(name, variables, source)


def whole(name: str, *variables: str, source: str) -> Kind:
    """A separate script after the common beginning."""
    return Kind(name, variables, f"{_HEAD}{dedent(source)}")
