"""The batches of one step: one, or several whose gradients are accumulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from segue.data.loader import Batch, Feed
from segue.data.order import Ids


class Group(NamedTuple):
    """The batches of one step, all of one epoch."""

    start: int
    """Position of its first sample."""
    samples: int
    """How many positions it takes up."""
    ids: Ids
    """The samples of all its batches."""
    contents: list[Any]
    """The collated samples of each batch."""
    weights: list[float]
    """The weight of this rank's mean of each batch."""

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Self:
        """The group of batches that follow one another."""
        first, last = batches[0], batches[-1]
        ids = first.ids if first is last else np.concatenate([batch.ids for batch in batches])
        samples = last.start + len(last.ids) - first.start
        return cls(first.start, samples, ids, [b.content for b in batches], [b.weight for b in batches])


def grouped(feed: Feed, samples_seen: int, *, count: int) -> Iterator[Group]:
    """All groups of `count` batches after a position at which a group begins; an epoch may end with a smaller one."""
    group: list[Batch] = []
    for batch in feed.batches(samples_seen):
        group.append(batch)
        if len(group) == count or feed.order.is_epoch_over(batch.start + len(batch.ids)):
            yield Group.of(group)
            group = []
