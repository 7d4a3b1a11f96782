"""Makes passes over a user's DataLoader.

A pass may begin at any batch, and uses the order in which the loader itself draws the batches. A sampler draws its
order from random streams at the beginning of a pass. If the random streams have their state from the beginning of the
pass, the sampler draws this order again. A pass does not fetch the samples of batches that were already used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, Dataset, get_worker_info

from segue.data.loader import Loader, samples_of
from segue.data.order import Ids, mix
from segue.data.streams import seed_all

_UNKNOWN = np.zeros(0, np.uint64)


class Drawn(NamedTuple):
    """One batch of a pass over the data."""

    content: Any
    """The batch that the loader returns."""
    ids: Ids
    """The ids of the samples in the batch. If the sampler does not draw integers, the array is empty."""
    order: str
    """Hash of all draws of the sampler in this pass, up to this batch."""


class Passes(Protocol):
    """Passes over a loader. Each pass may begin at any batch."""

    def begin(self, number: int, *, skip: int = 0) -> Iterator[Drawn]:
        """Yield the batches of pass `number` without the first `skip` batches."""
        ...

    @property
    def skipped_order(self) -> str | None:
        """Return the hash of the sampler's draws for the skipped batches.

        If the draws are not known, return None.
        """
        ...


class RepeatedPasses:
    """Passes over a loader of unknown type. A resume must fetch the skipped batches again."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self.skipped_order: str | None = None

    def begin(self, number: int, *, skip: int = 0) -> Iterator[Drawn]:
        """Yield the batches without the first `skip` batches.

        The method fetches the skipped batches before it returns.
        """
        batches = iter(self._loader)
        for _ in islice(batches, skip):
            pass
        return (Drawn(content, _UNKNOWN, "") for content in batches)


class LoaderPasses:
    """Passes over a DataLoader with a map-style data set. Each pass can begin at any batch."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        """`seed` is the seed for the random streams of worker processes."""
        self._loader = loader
        self._sampler = _FromBatch(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
        self._again = _again(loader, self._sampler, seed)

    def begin(self, number: int, *, skip: int = 0) -> Iterator[Drawn]:
        """Yield the batches of pass `number` without the first `skip` batches.

        The method does not fetch the samples of the skipped batches. It draws the same random numbers that the loader
        itself draws at the beginning of a pass.
        """
        if number == 0 or not self._loader.persistent_workers:
            # A loader seeds its workers with this number. Here, each batch has a seed of its own, and only the draw
            # from the stream is repeated.
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        self._sampler.rewind(number, skip=skip)
        batches = iter(self._again)
        if skip:
            self._sampler.start()
        return self._drawn(batches)

    @property
    def skipped_order(self) -> str | None:
        """Return the hash of the sampler's draws for the skipped batches."""
        return self._sampler.skipped_order

    def _drawn(self, batches: Iterator[Any]) -> Iterator[Drawn]:
        for content in batches:
            ids, order = self._sampler.drawn.popleft()
            yield Drawn(content, ids, order)


class _DrawnBatch(NamedTuple):
    number: int
    """The batch's number in the run, computed from the number of the pass and the batch's number in the pass."""
    drawn: Any
    """The value that the sampler drew: an index, or a list of indices."""


class _FromBatch:
    """A sampler that skips the first batches of a pass, and records the draws of the original sampler."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: Iterator[Any] | None = None
        self._pass = self._next = 0
        self._skip = 0
        self.drawn: deque[tuple[Ids, str]] = deque()
        """For each batch that was drawn but not used yet: the sample ids, and the hash of the draws up to the batch."""
        self.skipped_order = self._order = ""

    def __len__(self) -> int:
        return len(self._inner)

    def rewind(self, number: int, *, skip: int) -> None:
        self._pass, self._skip, self._next = number, skip, 0
        self._rest, self._order = None, ""
        self.drawn.clear()

    def start(self) -> None:
        """Draw the skipped batches, if the sampler has not drawn them yet."""
        if self._rest is not None:
            return
        self._rest = iter(self._inner)
        for _ in range(self._skip):
            drawn = next(self._rest, None)
            if drawn is not None:
                self._note(drawn)
        self.skipped_order = self._order

    def __iter__(self) -> Iterator[_DrawnBatch]:
        self.start()
        assert self._rest is not None
        for drawn in self._rest:
            self._note(drawn)
            self.drawn.append((_ids(drawn), self._order))
            yield _DrawnBatch((self._pass << 32) | self._next, drawn)

    def _note(self, drawn: Any) -> None:
        self._next += 1
        ids = _ids(drawn)
        told = ids.tobytes() if len(ids) else repr(drawn).encode()
        self._order = xxhash.xxh3_64_hexdigest(self._order.encode() + told)


class _Fetched(Dataset[Any]):
    """Fetches the samples of a drawn batch.

    In worker processes, the class seeds the random streams for each batch by the batch's position in the run. Without
    these seeds, a worker's random augmentation would depend on the number of batches that the worker has fetched. A
    resume does not know this number.
    """

    def __init__(self, inner: Dataset[Any], seed: int) -> None:
        self._inner, self._seed = inner, seed

    def __getitem__(self, plan: _DrawnBatch) -> Any:
        self._begin(plan)
        return self._inner[plan.drawn]

    def __getitems__(self, plan: _DrawnBatch) -> list[Any]:
        self._begin(plan)
        return samples_of(self._inner, plan.drawn)

    def _begin(self, plan: _DrawnBatch) -> None:
        if get_worker_info() is not None:
            mixed = mix(mix(np.array([plan.number], np.uint64)) ^ np.uint64(self._seed % 2**64))
            seed_all(int(mixed[0] >> np.uint64(1)))


def _again(loader: DataLoader[Any], sampler: _FromBatch, seed: int) -> DataLoader[Any]:
    """Return the loader with another sampler. The new loader does not draw from the global random streams."""
    workers = loader.num_workers
    return Loader(
        _Fetched(loader.dataset, seed),
        **({"batch_size": None, "sampler": sampler} if loader.batch_sampler is None else {"batch_sampler": sampler}),
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        prefetch_factor=loader.prefetch_factor if workers else None,
        persistent_workers=loader.persistent_workers,
        generator=torch.Generator().manual_seed(seed),
    )


def _ids(drawn: Any) -> Ids:
    try:
        ids = np.atleast_1d(np.asarray(drawn))
    except ValueError:
        return _UNKNOWN  # The indices are not all integers.
    return ids.astype(np.uint64).ravel() if ids.dtype.kind in "iu" else _UNKNOWN
