"""Yields batches from any position of the sample order, one by one or grouped by step. The loader has the settings of
the user's own DataLoader."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

from segue.data.order import Ids, SampleOrder, mix
from segue.data.sampled import Draws, SampledOrder, has_own_sampler
from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.records import Skip
from segue.user_objects import attribute


class Batch(NamedTuple):
    """A collated batch, and the ids of its samples over all ranks."""

    start: int
    """Position of the batch's first sample in the order.

    If a batch was skipped, this position is not the end of the previous batch.
    """
    ids: Ids
    content: Any
    """The collated samples of this rank."""
    weight: float = 1.0
    """Weight of this rank's mean in the mean over all ranks.

    The weight is 0 if the batch is too short for this rank.
    """


class Feed:
    """Yields the run's batches after any given position. Therefore a feed needs no saved state."""

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
        """The feed does not fetch batches in `skips`, and draws no random numbers for them.

        Other batches do not change.
        """
        self._loader = loader
        self._rank, self._world_size = rank, world_size
        self._seed = seed
        self.order = _order_of(loader, recipe=recipe, seed=seed, skips=skips)

    def batches(self, samples_seen: int) -> Iterator[Batch]:
        """Yield all batches after `samples_seen`, epoch after epoch, without end."""
        while True:
            starts = self.order.rest_of_epoch(samples_seen)
            for start, content in zip(starts, self._epoch(samples_seen), strict=True):
                ids = self.order.batch(start)
                yield Batch(start, ids, content, self._weight(len(ids)))
            samples_seen = self.order.end_of_epoch(samples_seen)

    def _weight(self, count: int) -> float:
        start, stop = share_of(count, rank=self._rank, world_size=self._world_size)
        return (stop - start) * self._world_size / count

    def _epoch(self, samples_seen: int) -> DataLoader[Any]:
        given = self._loader
        workers = given.num_workers
        # The loader gets its own generator. Without one, DataLoader draws a number from the global stream at each
        # iteration, so a run that was resumed within an epoch would draw one number more than an undisturbed run.
        generator = torch.Generator().manual_seed(self._seed)
        return Loader(
            _Planned(given.dataset, self._seed),
            batch_sampler=_RestOfEpoch(self.order, samples_seen, self._rank, self._world_size),
            num_workers=workers,
            collate_fn=given.collate_fn,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context if workers else None,
            prefetch_factor=given.prefetch_factor if workers else None,
            generator=generator,
        )


def stream_seed(seed: int, *, rank: int, step: int) -> int:
    """Return the seed for the random streams of a rank whose streams are not in the checkpoint."""
    state = np.array([seed], np.uint64)
    for salt in (rank, step):
        state = mix(state ^ mix(np.array([salt], np.uint64)))
    return int(state[0] >> np.uint64(1))


def share_of(count: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """Return the start and the stop of a rank's samples within a batch.

    All ranks together use the whole batch, whatever the number of ranks.
    """
    return count * rank // world_size, count * (rank + 1) // world_size


class _PlannedBatch(NamedTuple):
    samples_seen: int
    ids: list[int]


class _RestOfEpoch:
    """A batch sampler that begins at any position of an epoch."""

    def __init__(self, order: SampleOrder, samples_seen: int, rank: int, world_size: int) -> None:
        self._order, self._start = order, samples_seen
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[_PlannedBatch]:
        for position in self._order.rest_of_epoch(self._start):
            ids = self._order.batch(position)
            start, stop = share_of(len(ids), rank=self._rank, world_size=self._world_size)
            # A rank without samples still takes part in the step, with one sample of weight 0.
            yield _PlannedBatch(position + start, ids[start : max(stop, start + 1)].tolist() or ids[:1].tolist())


class _Planned(Dataset[Any]):
    """Fetches planned batches.

    In worker processes, the class seeds the random streams for each batch by the batch's position in the run. Without
    these seeds, a worker's random augmentation would depend on the number of batches that the worker has fetched. A
    resume does not know this number.
    """

    def __init__(self, inner: Dataset[Any], seed: int) -> None:
        self._inner, self._seed = inner, seed

    def __getitem__(self, index: int) -> Any:
        return self._inner[index]

    def __getitems__(self, plan: _PlannedBatch) -> list[Any]:
        samples_seen, ids = plan
        if get_worker_info() is not None:
            seed_all(int(mix(np.array([self._seed ^ samples_seen], np.uint64))[0] >> np.uint64(1)))
        return samples_of(self._inner, ids)


def samples_of(dataset: Dataset[Any], ids: list[int]) -> list[Any]:
    """Return the samples with these indices.

    If the data set has `__getitems__`, one call fetches all samples. If not, each sample is fetched by a call.
    """
    many = attribute(dataset, "__getitems__")
    return many(ids) if many is not None else [dataset[index] for index in ids]


def _order_of(loader: DataLoader[Any], *, recipe: str, seed: int, skips: tuple[Skip, ...]) -> SampleOrder:
    if isinstance(loader.dataset, IterableDataset):
        why = "its data set is an IterableDataset, which has no position to resume from."
        raise RecipeError(recipe=recipe, why=why, fix="use a map-style data set.")
    if loader.batch_size is None and loader.batch_sampler is None:
        why = "its DataLoader has batch_size=None, which makes no batches."
        raise RecipeError(recipe=recipe, why=why, fix="give the DataLoader a batch_size or a batch_sampler.")
    if has_own_sampler(loader):
        return _sampled(loader, recipe=recipe, seed=seed, skips=skips)
    assert loader.batch_size is not None
    count = len(loader.dataset)  # type: ignore[arg-type]
    if count < (loader.batch_size if loader.drop_last else 1):
        why = f"its data set of {count} samples does not fill one batch of {loader.batch_size}."
        raise RecipeError(recipe=recipe, why=why, fix="give more samples, or a smaller batch_size.")
    return SampleOrder(
        count=count,
        batch_size=loader.batch_size,
        seed=seed,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
        skips=skips,
    )


def _sampled(loader: DataLoader[Any], *, recipe: str, seed: int, skips: tuple[Skip, ...]) -> SampledOrder:
    draws = Draws(loader, recipe=recipe, seed=seed)
    if not draws.samples:
        why = f"the {type(draws.sampler).__name__} of its DataLoader yields no batch."
        raise RecipeError(recipe=recipe, why=why, fix="give more samples, or smaller batches.")
    return SampledOrder(
        count=len(loader.dataset),  # type: ignore[arg-type]
        batch_size=loader.batch_size or 0,
        seed=seed,
        shuffle=False,
        drop_last=loader.drop_last,
        skips=skips,
        draws=draws,
    )


class Group(NamedTuple):
    """The batches of one step. All batches of a group belong to one epoch."""

    start: int
    """Position of the first sample of the group."""
    samples: int
    """Number of positions in the group."""
    ids: Ids
    """The sample ids of all batches of the group."""
    contents: list[Any]
    """The collated samples of each batch."""
    weights: list[float]
    """For each batch, the weight of this rank's mean."""

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Self:
        """Return the group of these consecutive batches."""
        first, last = batches[0], batches[-1]
        if first is last:
            return cls(first.start, len(first.ids), first.ids, [first.content], [first.weight])
        ids = np.concatenate([batch.ids for batch in batches])
        samples = last.start + len(last.ids) - first.start
        return cls(first.start, samples, ids, [b.content for b in batches], [b.weight for b in batches])


def grouped(feed: Feed, samples_seen: int, *, count: int) -> Iterator[Group]:
    """Yield groups of `count` batches, from position `samples_seen`. The last group of an epoch may be smaller."""
    group: list[Batch] = []
    for batch in feed.batches(samples_seen):
        group.append(batch)
        if len(group) == count or feed.order.is_epoch_over(batch.start + len(batch.ids)):
            yield Group.of(group)
            group = []


_NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_BEFORE_THE_JOIN = 100
"""Priority of a finalizer that multiprocessing calls before multiprocessing ends its child processes."""

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_ended_at_exit: set[int] = set()
"""Ids of the processes that have a finalizer. The finalizer kills the workers. A child process inherits this set, but
no finalizers."""


class Loader(DataLoader[Any]):
    """A DataLoader whose workers ignore SIGTERM, SIGUSR1 and Ctrl-C.

    Forked workers ignore these signals from the beginning. A platform signals every process of a machine, and a
    terminal signals every process in its foreground. If a signal killed a worker, the training step would raise an
    error, and a preemption would look like a bug. Only the trainer acts on a notice, and it ends its workers itself.
    The trainer also ends the workers of an iterator that a script still holds at its end.
    """

    def __init__(self, dataset: Any, *, worker_init_fn: Callable[[int], None] | None = None, **fields: Any) -> None:
        """The arguments are the same as for DataLoader."""
        super().__init__(dataset, worker_init_fn=_IgnoreNotices(worker_init_fn), **fields)

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        # The signals are blocked during the start: workers inherit the mask, and a signal would kill a worker before
        # the worker ignores it. This process still gets the signal in another thread, or after the workers' start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        try:
            batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _end_at_exit(getattr(batches, "_workers", ()))
        return batches


class _IgnoreNotices:
    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        for number in _NOTICES:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)  # Pending signals are dropped.
        if self._inner is not None:
            self._inner(worker_id)


def _end_at_exit(workers: Any) -> None:
    """Kill these worker processes when this process exits.

    Without this finalizer, multiprocessing would send SIGTERM to the workers and wait for ever.
    """
    _workers.update(workers)
    if os.getpid() not in _ended_at_exit:
        _ended_at_exit.add(os.getpid())
        Finalize(None, _kill_workers, exitpriority=_BEFORE_THE_JOIN)


def _kill_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a worker that was killed.
    for worker in list(_workers):
        if worker.is_alive():
            worker.kill()
