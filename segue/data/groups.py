"""The batches of one step: one, or several whose gradients are accumulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from segue.data.loader import Batch, Feed
from segue.data.order import Ids


@dataclass(frozen=True)
class Group:
    """The batches of one step, all of one epoch."""

    batches: tuple[Batch, ...]

    @property
    def start(self) -> int:
        """Position of its first sample."""
        return self.batches[0].start

    @property
    def samples(self) -> int:
        """How many positions it takes up."""
        last = self.batches[-1]
        return last.start + len(last.ids) - self.start

    @cached_property
    def ids(self) -> Ids:
        """The samples of all its batches."""
        return self.batches[0].ids if len(self.batches) == 1 else np.concatenate([each.ids for each in self.batches])

    @property
    def contents(self) -> list[Any]:
        """The collated samples of each batch."""
        return [batch.content for batch in self.batches]

    @property
    def weights(self) -> list[float]:
        """The weight of this rank's mean of each batch."""
        return [batch.weight for batch in self.batches]


def grouped(feed: Feed, samples_seen: int, *, count: int) -> Iterator[Group]:
    """All groups of `count` batches after a position at which a group begins; an epoch may end with a smaller one."""
    group: list[Batch] = []
    for batch in feed.batches(samples_seen):
        group.append(batch)
        if len(group) == count or feed.order.is_epoch_over(batch.start + len(batch.ids)):
            yield Group(tuple(group))
            group = []
