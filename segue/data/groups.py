"""The batches of one step: one batch, or several batches whose gradients are accumulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from segue.data.loader import Batch, Feed
from segue.data.order import Ids


class Group(NamedTuple):
    """The batches of one step. All of them belong to one epoch."""

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
        """The group of these consecutive batches."""
        first, last = batches[0], batches[-1]
        ids = first.ids if first is last else np.concatenate([batch.ids for batch in batches])
        samples = last.start + len(last.ids) - first.start
        return cls(first.start, samples, ids, [b.content for b in batches], [b.weight for b in batches])


def grouped(feed: Feed, samples_seen: int, *, count: int) -> Iterator[Group]:
    """Yield all groups of `count` batches after the beginning of a group. The last group of an epoch may be smaller."""
    group: list[Batch] = []
    for batch in feed.batches(samples_seen):
        group.append(batch)
        if len(group) == count or feed.order.is_epoch_over(batch.start + len(batch.ids)):
            yield Group.of(group)
            group = []
