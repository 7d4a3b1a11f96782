"""Data order is a function of (seed, epoch, samples seen) and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.data.order import SampleOrder, shuffled


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation_of_all_samples(count, seed, epoch):
    ids = shuffled(np.arange(count, dtype=np.uint64), count=count, seed=seed, epoch=epoch)
    assert sorted(ids.tolist()) == list(range(count))


@given(
    count=st.integers(1, 500),
    batch_size=st.integers(1, 64),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    stop_after=st.integers(0, 40),
)
def test_an_order_taken_up_anywhere_goes_on_as_if_never_left(count, batch_size, shuffle, drop_last, stop_after):
    if drop_last and count < batch_size:
        return
    order = SampleOrder(count, batch_size, seed=3, shuffle=shuffle, drop_last=drop_last)

    def batches(samples_seen, number):
        taken = []
        for _ in range(number):
            ids = order.batch(samples_seen)
            taken.append(ids.tolist())
            samples_seen += len(ids)
        return taken, samples_seen

    whole, _ = batches(0, stop_after + 10)
    head, position = batches(0, stop_after)
    tail, _ = batches(position, 10)
    assert head + tail == whole


@pytest.mark.matrix
@pytest.mark.parametrize(("count", "batch_size"), [(70_001, 1000), (16_385, 64), (200_000, 90_000)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_has_the_samples_that_its_positions_have_alone(count, batch_size, drop_last):
    order = SampleOrder(count, batch_size, seed=7, shuffle=True, drop_last=drop_last)
    seen = 0
    while order.epoch_of(seen) < 2:
        ids = order.batch(seen)
        assert np.array_equal(ids, order.at(np.arange(seen, seen + len(ids), dtype=np.uint64)))
        seen += len(ids)


@pytest.mark.parametrize(("drop_last", "lengths"), [(False, [4, 4, 2, 4, 4, 2]), (True, [4, 4, 4, 4, 4, 4])])
def test_the_last_batch_of_an_epoch_is_short_or_dropped(drop_last, lengths):
    order = SampleOrder(10, 4, seed=0, shuffle=True, drop_last=drop_last)
    seen, found = 0, []
    for _ in lengths:
        found.append(len(order.batch(seen)))
        seen += found[-1]
    assert found == lengths


def test_every_epoch_uses_each_sample_once_when_none_is_dropped():
    order = SampleOrder(10, 4, seed=0, shuffle=True, drop_last=False)
    for epoch in range(3):
        ids = np.concatenate([order.batch(10 * epoch + start) for start in (0, 4, 8)])
        assert sorted(ids.tolist()) == list(range(10))


def test_epochs_and_seeds_give_unlike_orders():
    positions = np.arange(1000, dtype=np.uint64)
    orders = [
        tuple(shuffled(positions, count=1000, seed=seed, epoch=epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    ]
    assert len(set(orders)) == 16
    # Two random permutations of 1000 agree in about one place.
    agreements = [
        sum(a == b for a, b in zip(one, other, strict=True)) for one in orders for other in orders if one != other
    ]
    assert np.mean(agreements) == pytest.approx(1.0, abs=0.5)


def test_the_shuffle_spreads_samples_evenly_over_positions():
    """Chi-square of where sample ids land, in 10 x 10 bins over 400 epochs, against its 99.9 % quantile (81 df)."""
    count, table = 200, np.zeros((10, 10))
    for epoch in range(400):
        ids = shuffled(np.arange(count, dtype=np.uint64), count=count, seed=11, epoch=epoch).astype(int)
        np.add.at(table, (np.arange(count) // 20, ids // 20), 1)
    expected = table.sum() / 100
    assert ((table - expected) ** 2 / expected).sum() < 126.1


def test_the_order_is_the_same_on_every_machine_and_version():
    ids = shuffled(np.arange(12, dtype=np.uint64), count=12, seed=2013, epoch=1)
    # Written down once: a change here would give every running training another data order.
    assert ids.tolist() == [7, 2, 5, 9, 8, 6, 3, 1, 4, 0, 11, 10]
