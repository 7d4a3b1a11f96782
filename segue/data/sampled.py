"""Makes the order of the user's own sampler a function of seed and epoch.

A sampler draws from random streams, and segue seeds these streams for each epoch. The sampler draws the same order in
every attempt, so a run can resume at any position. segue holds the order of one epoch in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from segue.data.order import Ids, SampleOrder, mix
from segue.data.streams import STREAMS, seed_all, set_state_of_stream, state_of_stream, streams_kept
from segue.errors import RecipeError
from segue.user_objects import attribute, has

_EPOCHS_KEPT = 2
_MOST_SEED = 2**63 - 1


class Pass(NamedTuple):
    """The order of one epoch, drawn by a sampler."""

    ids: Ids
    ends: np.ndarray[Any, np.dtype[np.int64]]
    """Position after the last sample of each batch."""


class Draws:
    """Draws the order of any epoch from a loader's sampler. The order of an epoch is always the same."""

    def __init__(self, loader: DataLoader[Any], *, recipe: str, seed: int) -> None:
        """Draw the order of the first epoch twice and compare both orders.

        Raises:
            RecipeError: the sampler's order is not a function of seed and epoch, or contains entries that are not
            integers.
        """
        self._recipe, self._seed = recipe, seed
        self._is_batched = loader.batch_size is None
        self.sampler = loader.batch_sampler if self._is_batched else loader.sampler
        self._batch_size, self._drop_last = loader.batch_size or 1, loader.drop_last
        self.epoch = lru_cache(_EPOCHS_KEPT)(self._checked)
        name = type(self.sampler).__name__
        if isinstance(self.sampler, DistributedSampler):
            fix = "use shuffle=True: segue itself splits each batch over the ranks."
            raise RecipeError(recipe=recipe, why=f"its DataLoader's {name} draws the part of one rank.", fix=fix)
        if attribute(self.sampler, "__len__") is None:
            why = f"its DataLoader's {name} has no length, so it may have no end."
            raise RecipeError(recipe=recipe, why=why, fix="give the sampler a __len__, and let its __iter__ end.")
        first, again = self._epoch(0), self._epoch(0)
        if not np.array_equal(first.ids, again.ids) or not np.array_equal(first.ends, again.ends):
            why = f"its DataLoader's {name} gives another order for the same seed and epoch."
            fix = "let the sampler draw from torch, NumPy, random or its own generator, and not change its own state."
            raise RecipeError(recipe=recipe, why=why, fix=fix)
        self.samples = len(first.ids)

    def _checked(self, number: int) -> Pass:
        found = self._epoch(number)
        if len(found.ids) != self.samples:
            counts = f"{self.samples} samples in epoch 0 and {len(found.ids)} in epoch {number}"
            why = f"its DataLoader's {type(self.sampler).__name__} draws {counts}."
            raise RecipeError(recipe=self._recipe, why=why, fix="let every epoch have the same number of samples.")
        return found

    def _epoch(self, number: int) -> Pass:
        drawn = self._drawn(number)
        try:
            batches = [[index(each) for each in batch] for batch in self._batched(drawn)]
            ids = np.fromiter(chain.from_iterable(batches), np.uint64)
        except (TypeError, ValueError, OverflowError):
            why = f"its DataLoader's {type(self.sampler).__name__} does not draw numbers of samples."
            raise RecipeError(recipe=self._recipe, why=why, fix="let the sampler draw integers from 0 on.") from None
        return Pass(ids, np.cumsum([len(batch) for batch in batches], dtype=np.int64))

    def _drawn(self, number: int) -> list[Any]:
        seed = int(mix(np.array([self._seed], np.uint64) ^ mix(np.array([number], np.uint64)))[0]) & _MOST_SEED
        sampler: Any = copy.copy(self.sampler)  # A copy draws, so changes of the sampler's attributes are not kept.
        with streams_kept(), _seeded(_generators(sampler), seed):
            seed_all(seed)
            if has(sampler, "set_epoch"):
                sampler.set_epoch(number)
            return list(sampler)

    def _batched(self, drawn: list[Any]) -> list[Any]:
        if self._is_batched:
            return [batch for batch in drawn if len(batch)]
        size = self._batch_size
        batches = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        return batches[:-1] if self._drop_last and batches and len(batches[-1]) < size else batches


@dataclass(frozen=True)
class SampledOrder(SampleOrder):
    """The order of a sampler that has the same number of samples in every epoch."""

    draws: Draws = field(kw_only=True, compare=False)

    @property
    def samples_per_epoch(self) -> int:
        return self.draws.samples

    @property
    def batches_per_epoch(self) -> int:
        return len(self.draws.epoch(0).ends)

    def position_after(self, batches: int) -> int:
        epoch, more = divmod(batches, self.batches_per_epoch)
        ends = self.draws.epoch(epoch).ends
        return epoch * self.samples_per_epoch + (int(ends[more - 1]) if more else 0)

    def batch_length(self, samples_seen: int) -> int:
        epoch, start = divmod(samples_seen, self.samples_per_epoch)
        ends = self.draws.epoch(epoch).ends
        return int(ends[np.searchsorted(ends, start, side="right")]) - start

    def batch(self, samples_seen: int) -> Ids:
        epoch, start = divmod(samples_seen, self.samples_per_epoch)
        return self.draws.epoch(epoch).ids[start : start + self.batch_length(samples_seen)]

    def at(self, numbers: Ids) -> Ids:
        epochs, positions = np.divmod(numbers, np.uint64(self.samples_per_epoch))
        return np.array(
            [
                self.draws.epoch(int(epoch)).ids[int(position)]
                for epoch, position in zip(epochs, positions, strict=True)
            ],
            np.uint64,
        )


def has_own_sampler(loader: DataLoader[Any]) -> bool:
    """Whether the user gave the loader a sampler, instead of a value of `shuffle`."""
    if loader.batch_size is None:
        return loader.batch_sampler is not None
    sampler = loader.sampler
    if isinstance(sampler, RandomSampler):
        return sampler.replacement or sampler.num_samples != len(sampler.data_source)
    return not isinstance(sampler, SequentialSampler)


def _generators(sampler: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the random generators of a sampler and of its inner samplers."""
    for value in attribute(sampler, "__dict__", {}).values():
        if isinstance(value, STREAMS):
            yield value
        elif isinstance(value, (Sampler, BatchSampler)) and depth:
            yield from _generators(value, depth - 1)


@contextmanager
def _seeded(generators: Iterable[Any], seed: int) -> Iterator[None]:
    """While the block runs, the generators start from this seed.

    The end of the block restores the states of the generators.
    """
    before: list[tuple[Any, Any]] = []
    for number, generator in enumerate(generators):
        before.append((generator, state_of_stream(generator)))
        _seed(generator, (seed + number) & _MOST_SEED)
    try:
        yield
    finally:
        for generator, state in before:
            set_state_of_stream(generator, state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed % 2**32)
