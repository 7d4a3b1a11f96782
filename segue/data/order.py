"""Computes the order of the data and positions in this order, as pure functions of (seed, epoch, samples seen).

The shuffle is a keyed bijection of 0..n-1: a balanced Feistel network over the next power of four. The network is
applied again until the result is below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
Therefore segue computes the sample at any position without the samples before it. The order needs no memory. Neither
the world size nor a library's shuffle changes the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from segue.records import Skip

Ids = npt.NDArray[np.uint64]

_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MIXES = ((np.uint64(30), _MIX_1), (np.uint64(27), _MIX_2))
_LAST_SHIFT = np.uint64(31)
_BLOCK_SAMPLES, _BLOCKS_KEPT = 32_768, 4
"""Number of positions that one call permutes, and number of permuted blocks that the cache keeps.

If a call permuted only one batch, its overhead would exceed the arithmetic.
"""


def mix(values: Ids) -> Ids:
    """The 64-bit finaliser of splitmix64. Every input bit affects every output bit."""
    mixed = values.copy()
    _mix_in_place(mixed, np.empty_like(mixed))
    return mixed


def _mix_in_place(z: Ids, scratch: Ids) -> None:
    np.add(z, _GOLDEN, out=z)  # Arrays of integers wrap around without a warning.
    for shift, factor in _MIXES:
        np.right_shift(z, shift, out=scratch)
        np.bitwise_xor(z, scratch, out=z)
        np.multiply(z, factor, out=z)
    np.right_shift(z, _LAST_SHIFT, out=scratch)
    np.bitwise_xor(z, scratch, out=z)


def shuffled(positions: Ids, *, count: int, seed: int, epoch: int) -> Ids:
    """Return the sample ids at these positions of the shuffled epoch. The shuffle is a bijection of 0..count-1."""
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    rounds = np.arange(_ROUNDS, dtype=np.uint64)
    keys = mix(rounds + _salt(seed) + _salt(epoch ^ int(_MIX_1)))
    ids = _permute(positions, keys, half_bits)
    outside = np.flatnonzero(ids >= count)
    walking = ids[outside]
    while outside.size:
        walking = _permute(walking, keys, half_bits)
        has_arrived = walking < count
        ids[outside[has_arrived]] = walking[has_arrived]
        outside, walking = outside[~has_arrived], walking[~has_arrived]
    return ids


@lru_cache(_BLOCKS_KEPT)
def _block(number: int, size: int, stop: int, epoch: tuple[int, int, int]) -> Ids:
    """Return the sample ids of one block of a shuffled epoch.

    The block ends at `stop`. Callers share the array, so the array is read-only. `epoch` contains the number of
    samples, the seed and the number of the epoch.
    """
    positions = np.arange(number * size, min((number + 1) * size, stop), dtype=np.uint64)
    count, seed, which = epoch
    ids = shuffled(positions, count=count, seed=seed, epoch=which)
    ids.flags.writeable = False
    return ids


def _salt(value: int) -> np.uint64:
    return np.uint64(mix(np.array([value % 2**64], dtype=np.uint64))[0])


def _permute(values: Ids, keys: Ids, half_bits: int) -> Ids:
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    left, right = values >> shift, values & mask
    mixed, scratch = np.empty_like(values), np.empty_like(values)
    for key in keys:
        np.bitwise_xor(right, key, out=mixed)
        _mix_in_place(mixed, scratch)
        np.bitwise_and(mixed, mask, out=mixed)
        np.bitwise_xor(left, mixed, out=left)
        left, right = right, left
    return (left << shift) | right


@dataclass(frozen=True)
class SampleOrder:
    """The order of all samples of all epochs, batch by batch."""

    count: int
    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool
    skips: tuple[Skip, ...] = ()
    """Ranges of positions that the run skips.

    Skipped positions still count, so the other batches keep their positions.
    """

    @cached_property
    def samples_per_epoch(self) -> int:
        """Number of samples in one epoch. If a short last batch is dropped, the value is less than `count`."""
        return self.count - self.count % self.batch_size if self.drop_last else self.count

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one epoch."""
        return -(-self.samples_per_epoch // self.batch_size)

    def position_after(self, batches: int) -> int:
        """Return the position after the first `batches` batches of the run."""
        epochs, more = divmod(batches, self.batches_per_epoch)
        return epochs * self.samples_per_epoch + more * self.batch_size

    def epoch_of(self, samples_seen: int) -> int:
        """Return the number of the epoch of the next sample, counted from 0."""
        return samples_seen // self.samples_per_epoch

    def batch_length(self, samples_seen: int) -> int:
        """Return the number of samples in the batch after `samples_seen`. The last batch of an epoch may be short."""
        left = self.samples_per_epoch - samples_seen % self.samples_per_epoch
        return min(self.batch_size, left)

    def end_of_epoch(self, samples_seen: int) -> int:
        """Return the end position of the epoch that contains the next sample."""
        return (self.epoch_of(samples_seen) + 1) * self.samples_per_epoch

    def is_epoch_over(self, samples_seen: int) -> bool:
        """Whether the epoch of the last used sample has no further batch."""
        if not self.skips or samples_seen % self.samples_per_epoch == 0:
            return samples_seen % self.samples_per_epoch == 0
        return next(self.rest_of_epoch(samples_seen), None) is None

    def rest_of_epoch(self, samples_seen: int) -> Iterator[int]:
        """Return the start positions of the remaining batches of the epoch, without skipped batches."""
        position, end = samples_seen, self.end_of_epoch(samples_seen)
        while position < end:
            if not self.is_skipped(position):
                yield position
            position += self.batch_length(position)

    def is_skipped(self, samples_seen: int) -> bool:
        """Whether the run skips the batch after `samples_seen`.

        The run skips a batch if at least one sample of the batch is in a skipped range.
        """
        if not self.skips:
            return False
        length = self.batch_length(samples_seen)
        return any(skip.overlaps(samples_seen, length) for skip in self.skips)

    def left_out_of_next(self, batches: int, *, samples_seen: int) -> list[int]:
        """Of the next `batches` batches after `samples_seen`, return the start positions of the skipped batches."""
        found: list[int] = []
        for _ in range(batches if self.skips else 0):
            if self.is_skipped(samples_seen):
                found.append(samples_seen)
            samples_seen += self.batch_length(samples_seen)
        return found

    def batch(self, samples_seen: int) -> Ids:
        """Return the sample ids of the batch after `samples_seen`.

        Callers may share the array. Copy the array before you change it.
        """
        epoch, start = divmod(samples_seen, self.samples_per_epoch)
        stop = start + self.batch_length(samples_seen)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.uint64)
        size = max(_BLOCK_SAMPLES, 2 * self.batch_size)
        first, last = start // size, (stop - 1) // size
        # The arguments are positional, because a cache looks them up in each call, at every step.
        limits = (size, self.samples_per_epoch, (self.count, self.seed, epoch))
        if first == last:
            ids = _block(first, *limits)
        else:
            ids = np.concatenate([_block(number, *limits) for number in range(first, last + 1)])
        return ids[start - first * size : stop - first * size]

    def at(self, numbers: Ids) -> Ids:
        """Return the sample ids at these positions, counted from the beginning of the run.

        `numbers` must be ascending.
        """
        epochs, positions = np.divmod(numbers, np.uint64(self.samples_per_epoch))
        if not self.shuffle:
            return positions
        by_epoch = [
            shuffled(positions[epochs == epoch], count=self.count, seed=self.seed, epoch=int(epoch))
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
        ]
        return np.concatenate(by_epoch)
