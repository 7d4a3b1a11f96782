"""The user's own samplers: every epoch's order is a function of the seed, so any position can be resumed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from segue.continuity.fingerprints import input_fingerprint
from segue.data.loader import Feed
from segue.data.streams import seed_all
from segue.errors import RecipeError

DATA = TensorDataset(torch.arange(50).float())


class Buckets(Sampler):
    """Batches of different lengths, in an order that changes with the epoch; counts its passes."""

    def __init__(self, source):
        self.source, self.passes, self.epoch = source, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 10

    def __iter__(self):
        self.passes += 1
        cuts = sorted(self.source.choice(range(1, 50), 9, replace=False).tolist())
        batches = [list(range(start, stop)) for start, stop in itertools.pairwise([0, *cuts, 50])]
        return iter(batches[self.epoch % 10 :] + batches[: self.epoch % 10])


class Endless(Sampler):
    def __iter__(self):
        return itertools.count()


class InPlace(Sampler):
    """Shuffles the list that it keeps: each pass depends on the one before."""

    def __init__(self):
        self.ids = list(range(50))

    def __len__(self):
        return 50

    def __iter__(self):
        random.shuffle(self.ids)
        return iter(self.ids)


class Fewer(Sampler):
    """Each epoch has a sample less."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 50

    def __iter__(self):
        return iter(range(50 - self.epoch))


LOADERS = {
    "weighted": lambda: DataLoader(DATA, 8, sampler=WeightedRandomSampler(torch.arange(50.0), 40)),
    "weighted, its own generator": lambda: DataLoader(
        DATA, 8, drop_last=True, sampler=WeightedRandomSampler([1.0] * 50, 50, generator=torch.Generator())
    ),
    "with replacement": lambda: DataLoader(DATA, 8, sampler=RandomSampler(DATA, replacement=True, num_samples=70)),
    "subset": lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler(range(20, 45))),
    "batches": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 7, drop_last=True)),
    "buckets": lambda: DataLoader(DATA, batch_sampler=Buckets(np.random.default_rng(4))),
    "buckets, the global stream": lambda: DataLoader(DATA, batch_sampler=Buckets(np.random.RandomState(4))),
}


def take(loader, number, samples_seen=0, seed=1):
    seed_all(len(str(samples_seen)))  # What the streams of the process are does not matter.
    feed = Feed(loader, recipe="test:build", seed=seed)
    return list(itertools.islice(feed.batches(samples_seen), number))


def contents(batches):
    return [input_fingerprint(batch.content) for batch in batches]


@pytest.mark.parametrize("name", LOADERS)
def test_a_feed_taken_up_anywhere_goes_on_with_the_next_batch(name):
    whole = take(LOADERS[name](), 25)
    assert all(batch.content[0].tolist() == batch.ids.tolist() for batch in whole)
    order = Feed(LOADERS[name](), recipe="test:build", seed=1).order
    epoch = order.batches_per_epoch
    assert contents(whole[:epoch]) != contents(whole[epoch : 2 * epoch])
    for used in (1, 6, 11, 19):
        seen = sum(len(batch.ids) for batch in whole[:used])
        assert contents(take(LOADERS[name](), 25 - used, seen)) == contents(whole[used:])
        assert order.position_after(used) == whole[used].start == seen
        assert order.at(np.arange(seen, seen + 3, dtype=np.uint64)).tolist()[:1] == whole[used].ids.tolist()[:1]
    assert contents(take(LOADERS[name](), 25, seed=2)) != contents(whole)


def test_drawing_an_order_leaves_every_stream_as_it_was():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(DATA, 8, sampler=WeightedRandomSampler([1.0] * 50, 50, generator=generator))
    before = [torch.get_rng_state().tolist(), random.getstate(), generator.get_state().tolist()]
    Feed(loader, recipe="test:build", seed=1).order.batch(0)
    assert [torch.get_rng_state().tolist(), random.getstate(), generator.get_state().tolist()] == before


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(DATA, 8, sampler=Endless()), "Endless has no length"),
        (lambda: DataLoader(DATA, 8, sampler=InPlace()), "InPlace gives another order for the same seed and epoch"),
        (lambda: DataLoader(DATA, 8, sampler=DistributedSampler(DATA, 2, 0)), "draws the part of one rank"),
        (lambda: DataLoader(DATA, 8, sampler=list("abcdefgh")), "does not draw numbers of samples"),
        (lambda: DataLoader(DATA, 8, sampler=[0.5, 1.5]), "does not draw numbers of samples"),
        (lambda: DataLoader(DATA, 8, sampler=[3, -1]), "does not draw numbers of samples"),
        (lambda: DataLoader(DATA, batch_sampler=[1, 2]), "does not draw numbers of samples"),
        (lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler([])), "yields no batch"),
        (lambda: DataLoader(DATA, batch_size=None), "which makes no batches"),
    ],
)
def test_an_order_that_is_no_function_of_seed_and_epoch_is_refused(loader, said):
    with pytest.raises(RecipeError, match=said):
        Feed(loader(), recipe="test:build", seed=1)


def test_an_epoch_of_another_length_is_named():
    feed = Feed(DataLoader(DATA, 8, sampler=Fewer()), recipe="test:build", seed=1)
    with pytest.raises(RecipeError, match="draws 50 samples in epoch 0 and 49 in epoch 1"):
        list(itertools.islice(feed.batches(0), 8))
