"""Batches from any position of the sample order, through the user's own DataLoader settings."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, get_worker_info

from segue.data.order import Ids, SampleOrder, mix
from segue.errors import RecipeError
from segue.records import Skip


class Batch(NamedTuple):
    """A collated batch and the ids of the samples in it, on all ranks."""

    start: int
    """Position in the sample order of its first sample; not where the batch before ended, if some were skipped."""
    ids: Ids
    content: Any
    """Of this rank's part of it."""
    weight: float = 1.0
    """What this rank's mean counts for in the mean over all ranks; 0 where a batch is too short for it."""


class Feed:
    """Draws the run's batches. Holds no state that has to be saved: the position comes in, batches come out."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        recipe: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        skips: tuple[Skip, ...] = (),
    ) -> None:
        """`skips` are left out: neither fetched nor drawn for, so that all else is as it would be without them."""
        self._loader = loader
        self._rank, self._world_size = rank, world_size
        self._seed = seed
        self.order = _order_of(loader, recipe=recipe, seed=seed, skips=skips)

    def batches(self, samples_seen: int) -> Iterator[Batch]:
        """All batches after `samples_seen`, epoch after epoch, without end."""
        while True:
            starts = self.order.rest_of_epoch(samples_seen)
            for start, content in zip(starts, self._epoch(samples_seen), strict=True):
                ids = self.order.batch(start)
                yield Batch(start, ids, content, self._weight(len(ids)))
            samples_seen = self.order.end_of_epoch(samples_seen)

    def _weight(self, count: int) -> float:
        start, stop = part_of(count, rank=self._rank, world_size=self._world_size)
        return (stop - start) * self._world_size / count

    def _epoch(self, samples_seen: int) -> DataLoader[Any]:
        given = self._loader
        workers = given.num_workers
        # Its own generator: by default DataLoader draws a number from the global stream each time it is
        # iterated, so a run that was resumed in mid-epoch would draw once more than one that was not.
        generator = torch.Generator().manual_seed(self._seed)
        return DataLoader(
            _Planned(given.dataset, self._seed),
            batch_sampler=_RestOfEpoch(self.order, samples_seen, self._rank, self._world_size),  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=given.collate_fn,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=_Sheltered(given.worker_init_fn),
            multiprocessing_context=given.multiprocessing_context if workers else None,
            prefetch_factor=given.prefetch_factor if workers else None,
            generator=generator,
        )


def seed_all(seed: int) -> None:
    """Seed every global stream a training script is likely to draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def stream_seed(seed: int, *, rank: int, step: int) -> int:
    """What to seed a rank's random streams with where nothing is stored for it; rank 0 keeps the run's."""
    state = np.array([seed], np.uint64)
    for salt in (rank, step):
        state = mix(state ^ mix(np.array([salt], np.uint64)))
    return int(state[0] >> np.uint64(1))


def part_of(count: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """Where a rank's samples begin and end in a batch: every batch is the same for any number of ranks."""
    return count * rank // world_size, count * (rank + 1) // world_size


class _Sheltered:
    """Starts a worker deaf to SIGTERM.

    Platforms signal every process of a machine. A worker that died of it would raise in the middle of a training step,
    and a preemption would look like a bug; the trainer reads the notice and ends its workers itself.
    """

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._inner is not None:
            self._inner(worker_id)


class _Plan(NamedTuple):
    samples_seen: int
    ids: list[int]


class _RestOfEpoch:
    """A batch sampler that starts anywhere in an epoch."""

    def __init__(self, order: SampleOrder, samples_seen: int, rank: int, world_size: int) -> None:
        self._order, self._start = order, samples_seen
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[_Plan]:
        for position in self._order.rest_of_epoch(self._start):
            ids = self._order.batch(position)
            start, stop = part_of(len(ids), rank=self._rank, world_size=self._world_size)
            # A rank that gets none still takes part in the step, with a sample that counts for nothing.
            yield _Plan(position + start, ids[start : max(stop, start + 1)].tolist() or ids[:1].tolist())


class _Planned(Dataset[Any]):
    """Fetches planned batches; in worker processes it seeds each one by its place in the run.

    Without that a worker's random augmentation would depend on how many batches that worker has served, which no
    resume can know.
    """

    def __init__(self, inner: Dataset[Any], seed: int) -> None:
        self._inner, self._seed = inner, seed

    def __getitem__(self, index: int) -> Any:
        return self._inner[index]

    def __getitems__(self, plan: _Plan) -> list[Any]:
        samples_seen, ids = plan
        if get_worker_info() is not None:
            seed_all(int(mix(np.array([self._seed ^ samples_seen], np.uint64))[0] >> np.uint64(1)))
        many = getattr(self._inner, "__getitems__", None)
        if many is not None:
            return many(ids)  # type: ignore[no-any-return]
        return [self._inner[index] for index in ids]


def _order_of(loader: DataLoader[Any], *, recipe: str, seed: int, skips: tuple[Skip, ...]) -> SampleOrder:
    if isinstance(loader.dataset, IterableDataset):
        raise RecipeError(recipe=recipe, why="an IterableDataset has no position to come back to; use a map-style one.")
    if loader.batch_size is None:
        why = "its DataLoader has its own batch sampler; give batch_size and shuffle, segue draws the order."
        raise RecipeError(recipe=recipe, why=why)
    sampler = loader.sampler
    plain_shuffle = isinstance(sampler, RandomSampler) and not sampler.replacement
    if not plain_shuffle and not isinstance(sampler, SequentialSampler):
        why = f"its DataLoader's {type(sampler).__name__} cannot be resumed; use shuffle=True or shuffle=False."
        raise RecipeError(recipe=recipe, why=why)
    count = len(loader.dataset)  # type: ignore[arg-type]
    if count < (loader.batch_size if loader.drop_last else 1):
        raise RecipeError(recipe=recipe, why=f"its data set of {count} samples gives no batch.")
    return SampleOrder(
        count=count,
        batch_size=loader.batch_size,
        seed=seed,
        shuffle=plain_shuffle,
        drop_last=loader.drop_last,
        skips=skips,
    )
