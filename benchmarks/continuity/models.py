"""Three models: a perceptron, a convolution net and a transformer. They are so small that a thousand resumes take only
minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.data import TEXT_LENGTH, VOCABULARY, flights

_WIDTH, _CHANNELS, _DEPTH = 32, 8, 2


class FlightsNet(nn.Module):
    """Delay of a flight, float32 (n,), from codes (n, 5) and numbers (n, 4)."""

    def __init__(self, *, dropout: float, activation: Callable[[], nn.Module], eps: float, momentum: float) -> None:
        super().__init__()
        codes, numbers, _ = flights()
        self.embeddings = nn.ModuleList(nn.Embedding(int(size) + 1, 4) for size in codes.amax(0))
        inputs = numbers.shape[1] + 4 * len(self.embeddings)

        def block(features: int) -> list[nn.Module]:
            norm = nn.BatchNorm1d(_WIDTH, eps=eps, momentum=momentum)
            return [nn.Linear(features, _WIDTH), norm, activation(), nn.Dropout(dropout)]

        self.body = nn.Sequential(*block(inputs), *block(_WIDTH), *block(_WIDTH), nn.Linear(_WIDTH, 1))

    def forward(self, codes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(codes[:, n]) for n, embedding in enumerate(self.embeddings)]
        found: torch.Tensor = self.body(torch.cat([*embedded, numbers], dim=1))
        return found.squeeze(1)


class DigitsNet(nn.Module):
    """Logits (n, 10) of images (n, 1, 8, 8)."""

    def __init__(self, *, dropout: float, activation: Callable[[], nn.Module], eps: float, momentum: float) -> None:
        super().__init__()

        def block(channels: int) -> list[nn.Module]:
            norm = nn.BatchNorm2d(_CHANNELS, eps=eps, momentum=momentum)
            return [nn.Conv2d(channels, _CHANNELS, 3, padding=1), norm, activation()]

        head = [nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(_CHANNELS * 16, 10)]
        self.body = nn.Sequential(*block(1), *block(_CHANNELS), *block(_CHANNELS), *head)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(images)
        return found


class TextNet(nn.Module):
    """Logits (n, 24, 128) of the next character, from characters (n, 24)."""

    def __init__(self, *, dropout: float, activation: Callable[[], nn.Module], eps: float, is_causal: bool) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, _WIDTH), nn.Embedding(TEXT_LENGTH, _WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                _WIDTH, 4, 2 * _WIDTH, dropout, activation(), layer_norm_eps=eps, batch_first=True
            )
            for _ in range(_DEPTH)
        )
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(_WIDTH, VOCABULARY)
        self.is_causal = is_causal

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        length = letters.shape[1]
        hidden = self.dropout(self.letters(letters) + self.places(torch.arange(length)))
        mask = torch.full((length, length), -torch.inf).triu(1) if self.is_causal else None
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask)
        found: torch.Tensor = self.head(hidden)
        return found


def hidden_warm_up(model: nn.Module) -> None:
    """Let a model scale its output by the number of its calls, which is state in no `state_dict`."""
    calls = 0

    def scaled(module: nn.Module, given: Any, found: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return found * (0.5 + 0.5 * min(calls / 200, 1.0))

    model.register_forward_hook(scaled)
