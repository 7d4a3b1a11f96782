"""The batches of one step: never of two epochs, also where the last batch of an epoch is skipped."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from segue.data.loader import Feed, grouped
from segue.records import Skip


def spans(*, skips=(), count):
    """Start and end of the first groups of ten samples in batches of two."""
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=2, shuffle=True)
    feed = Feed(loader, recipe="test", seed=1, skips=skips)
    groups = grouped(feed, 0, count=count)
    return [(group.start, group.start + group.samples) for group, _ in zip(groups, range(5), strict=False)]


def test_an_epoch_ends_with_a_smaller_group():
    assert spans(count=2) == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18)]


def test_a_group_ends_with_its_epoch_though_the_last_batch_is_skipped():
    skipped = (Skip(samples_seen=8, sample_count=2),)
    assert spans(count=3, skips=skipped) == [(0, 6), (6, 8), (10, 16), (16, 20), (20, 26)]


def test_a_skipped_batch_within_a_group_takes_up_its_place():
    skipped = (Skip(samples_seen=2, sample_count=2),)
    assert spans(count=2, skips=skipped)[:2] == [(0, 6), (6, 10)]
