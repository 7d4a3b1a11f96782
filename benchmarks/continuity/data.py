"""The samples of the continuity benchmark: flights, digits and text, with augmentation that draws from every stream."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from examples.flights.data import read_flights

Columns = tuple[torch.Tensor, ...]
"""The columns: first the inputs, last the target. The first dimension of each column is the sample."""

TEXT_LENGTH = 24
VOCABULARY = 128
_FLIGHTS_READ, _MOST_SAMPLES = 4000, 3000
_GLYPHS = (
    "01110100011001110101110011000101110",
    "00100011000010000100001000010001110",
    "01110100010000100010001000100011111",
    "11111000100010000010000011000101110",
    "00010001100101010010111110001000010",
    "11111100001111000001000011000101110",
    "00110010001000011110100011000101110",
    "11111000010001000100010000100001000",
    "01110100011000101110100011000101110",
    "01110100011000101111000010001001100",
)
"""The ten digits, five dots wide and seven high."""


@dataclass(frozen=True)
class Changes:
    """The processing of the samples. An edit of the data set changes one of these fields."""

    noise: float = 0.1
    """Of the augmentation."""
    noise_probability: float = 0.5
    scale: float = 1.0
    """Factor of the numbers, which represents a different normalisation."""
    inputs_every: int = 0
    """Interval of the samples that have their neighbour's inputs; 0: no sample."""
    targets_every: int = 0
    is_reversed: bool = False
    is_half: bool = False
    """Whether the numbers were rounded to float16."""
    hidden: str | None = None
    """Unregistered state of the data set: data (a counter that affects samples), generator, timestamp, cache."""


class Samples(Dataset[Any]):
    """Fetches a whole batch by one index into each column, and augments it."""

    def __init__(self, columns: Columns, changes: Changes) -> None:
        self.columns, self.changes = _changed(columns, changes), changes
        self._fetched = 0
        self._generator = torch.Generator().manual_seed(11)
        self.cache: dict[int, int] = {}
        self.opened_at: float = 0.0

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitems__(self, ids: list[int]) -> Columns:
        index = torch.tensor(ids)
        self._note(ids)
        inputs = self.columns[-2][index]
        return (*(c[index] for c in self.columns[:-2]), self._augmented(inputs), self.columns[-1][index])

    def _note(self, ids: list[int]) -> None:
        if self.changes.hidden == "data":
            self._fetched += 1
        elif self.changes.hidden == "timestamp":
            self.opened_at = time.time()
        elif self.changes.hidden == "cache":
            self.cache.update((number, len(self.cache)) for number in ids)

    def _augmented(self, inputs: torch.Tensor) -> torch.Tensor:
        """Every batch draws from each stream, so that a missing or additional draw shows in the next batch at the
        latest."""
        warm = 1.0 + min(self._fetched / 200, 1.0)
        chosen, turn = np.random.random() < self.changes.noise_probability, random.random()
        generator = self._generator if self.changes.hidden == "generator" else None
        strength = self.changes.noise * (1.0 + turn) * warm * (1.0 if chosen else 0.5)
        if inputs.is_floating_point():
            return inputs + strength * torch.randn(inputs.shape, generator=generator)
        is_masked = torch.rand(inputs.shape, generator=generator) < strength
        return inputs.masked_fill(is_masked, 0)


class GentlyAugmented(Samples):
    """The same samples with a rewritten augmentation."""

    def _augmented(self, inputs: torch.Tensor) -> torch.Tensor:
        found = super()._augmented(inputs)
        return (found + inputs) / 2 if found.is_floating_point() else torch.where(inputs % 2 == 0, inputs, found)


def columns_of(model: str, count: int) -> Columns:
    """The first `count` samples of a model's data, without any change."""
    return tuple(column[:count] for column in _READ[model]())


def as_fetched(batch: Any) -> Any:
    """A batch is collated when it is fetched."""
    return batch


@lru_cache(maxsize=1)
def flights() -> Columns:
    """Codes int64 (n, 5), numbers float32 (n, 4), delays float32 (n,)."""
    read = read_flights(_FLIGHTS_READ)
    return read.codes[:_MOST_SAMPLES], read.numbers[:_MOST_SAMPLES], read.delays[:_MOST_SAMPLES]


@lru_cache(maxsize=1)
def digits() -> Columns:
    """Synthetic images float32 (n, 1, 8, 8) of digits, shifted and blurred by noise, and labels int64 (n,)."""
    made = torch.Generator().manual_seed(5)
    glyphs = torch.tensor([[float(dot) for dot in glyph] for glyph in _GLYPHS]).reshape(10, 7, 5)
    labels = torch.randint(10, (_MOST_SAMPLES,), generator=made)
    images = 0.3 * torch.randn(_MOST_SAMPLES, 1, 8, 8, generator=made)
    downs, rights = (
        torch.randint(2, (_MOST_SAMPLES,), generator=made),
        torch.randint(4, (_MOST_SAMPLES,), generator=made),
    )
    for n, (label, down, right) in enumerate(zip(labels, downs, rights, strict=True)):
        images[n, 0, down : down + 7, right : right + 5] += glyphs[label]
    return images, labels


@lru_cache(maxsize=1)
def text() -> Columns:
    """Windows of the project's licence, int64 (n, 24), and the characters that follow each one, (n, 24)."""
    path = Path(__file__).parents[2] / "LICENSE"
    codes = torch.tensor([min(ord(letter), VOCABULARY - 1) for letter in path.read_text(encoding="utf-8")])
    starts = torch.arange(_MOST_SAMPLES) * (len(codes) - TEXT_LENGTH - 1) // _MOST_SAMPLES
    windows = codes[starts[:, None] + torch.arange(TEXT_LENGTH + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


_READ = {"flights": flights, "digits": digits, "text": text}


def _changed(columns: Columns, changes: Changes) -> Columns:
    inputs, targets = columns[-2].clone(), columns[-1].clone()
    if inputs.is_floating_point():
        inputs *= changes.scale
        inputs = inputs.half().float() if changes.is_half else inputs
    if changes.inputs_every:
        inputs[:: changes.inputs_every] = inputs.roll(1, 0)[:: changes.inputs_every]
    if changes.targets_every:
        targets[:: changes.targets_every] = targets.roll(1, 0)[:: changes.targets_every]
    whole = (*columns[:-2], inputs, targets)
    return tuple(column.flip(0) for column in whole) if changes.is_reversed else whole
