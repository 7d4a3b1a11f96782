"""A GPT of a chosen size, which a plain training loop and a recipe train with the same steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from segue.recipe import Recipe

TIMES: list[float] = []
"""Time at which each step was launched, in the process that trains."""


class Size(NamedTuple):
    """Of a model and its batches."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    words: int


SIZES = {
    "1.5B": Size(48, 1600, 25, 512, 8, 32_768),
    "370M": Size(24, 1024, 16, 512, 16, 32_768),
    "30M": Size(6, 512, 8, 256, 8, 16_384),
    "tiny": Size(2, 64, 4, 32, 4, 512),
}


class _Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        found: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return found


class GPT(nn.Module):
    """A GPT: decoder blocks between an embedding and a separate head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.last, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        found: torch.Tensor = self.head(self.last(hidden))
        return found


class _Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, size: Size) -> None:
        made = torch.Generator().manual_seed(7)
        self.length, self.data = size.tokens, torch.randint(size.words, (100_000,), generator=made)

    def __len__(self) -> int:
        return len(self.data) - self.length - 1

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[at : at + self.length], self.data[at + 1 : at + self.length + 1]


def loader_of(size: Size) -> DataLoader[Any]:
    return DataLoader(_Tokens(size), batch_size=size.batch, shuffle=True)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=torch.cuda.is_available())


def loss_of(model: Callable[..., Any], batch: Any) -> torch.Tensor:
    x, y = batch
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        words = model(x)
        return functional.cross_entropy(words.view(-1, words.shape[-1]).float(), y.reshape(-1))


def build(config: dict[str, Any]) -> Recipe:
    """Config: size; times_file, which gets the times of the steps once there are `steps` of them."""
    size, goal, file = SIZES[config.get("size", "370M")], config.get("steps"), config.get("times_file")
    model = GPT(size)

    def after_step(step: int) -> None:
        TIMES.append(time.perf_counter())
        if step == goal and file is not None:
            Path(file).write_text(json.dumps(TIMES))

    return Recipe(
        model=model,
        optimizer=optimizer_of(model),
        data=loader_of(size),
        loss=loss_of,
        clip_grad_norm=1.0,
        after_step=after_step,
    )
