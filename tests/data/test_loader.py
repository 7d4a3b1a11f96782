"""Batches through the user's DataLoader, from any position, with and without worker processes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint
from segue.data.loader import Feed
from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.records import Skip

DATA = TensorDataset(torch.arange(50).float())
WEIGHTED = WeightedRandomSampler([1.0] * 50, 50)


class Augmented(Dataset):
    """Each sample with random noise, as an augmentation adds it."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), torch.rand(()).item()])


def take(loader, number, samples_seen=0):
    seed_all(5)
    feed = Feed(loader, recipe="test:build", seed=1)
    return list(itertools.islice(feed.batches(samples_seen), number))


def contents(batches):
    return [input_fingerprint(batch.content) for batch in batches]


def test_a_feed_yields_the_samples_of_its_order():
    for batch in take(DataLoader(DATA, batch_size=8, shuffle=True), 20):
        assert batch.content[0].tolist() == batch.ids.tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_feed_taken_up_in_mid_epoch_goes_on_with_the_next_batch(shuffle):
    loader = DataLoader(DATA, batch_size=8, shuffle=shuffle)
    whole = take(loader, 20)
    seen = sum(len(batch.ids) for batch in whole[:11])
    assert contents(take(loader, 9, seen)) == contents(whole[11:])


def test_worker_processes_change_neither_order_nor_content():
    plain = take(DataLoader(DATA, batch_size=8, shuffle=True), 10)
    with_workers = take(DataLoader(DATA, batch_size=8, shuffle=True, num_workers=2), 10)
    assert contents(with_workers) == contents(plain)


@pytest.mark.matrix
def test_random_augmentation_in_workers_continues_exactly_in_mid_epoch():
    loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=2)
    whole = take(loader, 9)
    assert contents(take(loader, 4, 5 * 8)) == contents(whole[5:])
    assert contents(take(DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=1), 9)) == contents(whole)


def test_drawing_batches_leaves_the_global_random_stream_alone():
    seed_all(9)
    before = torch.get_rng_state()
    feed = Feed(DataLoader(DATA, batch_size=8, shuffle=True), recipe="test:build", seed=1)
    list(itertools.islice(feed.batches(0), 15))
    assert torch.equal(torch.get_rng_state(), before)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: DataLoader(Stream(), batch_size=2), "IterableDataset"),
        (lambda: DataLoader(DATA, batch_size=64, drop_last=True), "does not fill one batch"),
    ],
)
def test_a_loader_that_cannot_be_resumed_is_refused_with_the_fix(loader, named):
    with pytest.raises(RecipeError, match=named):
        Feed(loader(), recipe="test:build", seed=1)


def test_the_batch_fingerprint_does_not_depend_on_the_order_inside_a_batch():
    (batch,) = take(DataLoader(DATA, batch_size=8, shuffle=True), 1)
    assert batch_fingerprint(batch.ids[::-1].copy()) == batch_fingerprint(batch.ids)
    assert batch_fingerprint(batch.ids[:-1]) != batch_fingerprint(batch.ids)


@pytest.mark.parametrize(
    "other",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([3])),
        [torch.tensor([1.0, 2.5]), torch.tensor([3])],
        [torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3])],
        [torch.tensor([[1.0, 2.0]]), torch.tensor([3])],
        [torch.tensor([3]), torch.tensor([1.0, 2.0])],
    ],
)
def test_the_input_fingerprint_sees_value_type_shape_and_structure(other):
    assert input_fingerprint(other) != input_fingerprint([torch.tensor([1.0, 2.0]), torch.tensor([3])])


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_left_out_changes_nothing_about_what_is_left(workers):
    # 48 samples in batches of 8; the second stretch covers a whole epoch and a sample of the batch before it.
    skips = (Skip(samples_seen=16, sample_count=8), Skip(samples_seen=95, sample_count=49))
    loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=workers)
    whole, rest = (Feed(loader, recipe="test:build", seed=1, skips=those) for those in ((), skips))
    seed_all(3)
    expected = {batch.start: batch for batch in itertools.islice(whole.batches(0), 20)}
    seed_all(3)
    found = list(itertools.islice(rest.batches(0), 12))
    assert [batch.start for batch in found] == [*range(0, 16, 8), *range(24, 88, 8), 144, 152]
    for batch in found:
        assert batch.ids.tolist() == expected[batch.start].ids.tolist()
        if workers:
            # Each batch is seeded by its place; without workers it draws from the run's stream, as it comes.
            torch.testing.assert_close(batch.content, expected[batch.start].content, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("samples_seen", "batches", "starts"),
    [(0, 2, []), (0, 3, [16]), (24, 9, [88]), (96, 7, [96, 104, 112, 120, 128, 136])],
)
def test_it_is_known_beforehand_which_of_the_next_batches_are_left_out(samples_seen, batches, starts):
    skips = (Skip(samples_seen=16, sample_count=8), Skip(samples_seen=95, sample_count=49))
    order = Feed(DataLoader(Augmented(), batch_size=8), recipe="test:build", seed=1, skips=skips).order
    assert order.left_out_of_next(batches, samples_seen=samples_seen) == starts
