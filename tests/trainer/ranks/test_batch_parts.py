"""How ranks divide a batch: every sample once, the same batch for any number of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from segue.continuity.fingerprints import batch_fingerprint
from segue.data.loader import Feed, share_of, stream_seed

DATA = TensorDataset(torch.arange(23))


@given(count=st.integers(1, 40), world_size=st.integers(1, 7))
def test_the_shares_of_a_batch_cover_it_exactly_and_differ_by_one_sample_at_most(count, world_size):
    shares = [share_of(count, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [at for start, stop in shares for at in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


def fed(rank, world_size, *, batch_size, number, **options):
    loader = DataLoader(DATA, batch_size=batch_size, shuffle=True, **options)
    feed = Feed(loader, recipe="test:build", seed=3, rank=rank, world_size=world_size)
    return list(itertools.islice(feed.batches(0), number))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(10, False), (10, True), (5, False), (4, False)])
def test_any_number_of_ranks_draws_the_same_batches_in_the_same_order(batch_size, drop_last, workers):
    """Of 23 samples the last batch has 3; batches are shorter than the number of ranks, too."""
    options = {"batch_size": batch_size, "drop_last": drop_last, "number": 8, "num_workers": workers}
    alone = fed(0, 1, **options)
    whole = [batch.content[0].tolist() for batch in alone]
    assert any(length < batch_size for length in map(len, whole)) is not drop_last
    for world_size in (2, 3, 7)[: 1 if workers else 3]:
        groups = [fed(rank, world_size, **options) for rank in range(world_size)]
        for number, parts in enumerate(zip(*groups, strict=True)):
            seen = [sample for part in parts if part.weight for sample in part.content[0].tolist()]
            assert seen == whole[number]
            assert {batch_fingerprint(part.ids) for part in parts} == {batch_fingerprint(alone[number].ids)}


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
def test_the_weighted_mean_over_ranks_is_the_mean_over_the_batch(world_size):
    groups = [fed(rank, world_size, batch_size=10, number=5) for rank in range(world_size)]
    for parts in zip(*groups, strict=True):
        mean = sum(part.content[0].double().mean().item() * part.weight for part in parts) / world_size
        assert mean == pytest.approx(sum(parts[0].ids.tolist()) / len(parts[0].ids))
        assert sum(part.weight for part in parts) == pytest.approx(world_size)


def test_a_rank_whose_share_is_empty_still_gets_a_sample_for_the_collectives():
    parts = [fed(rank, 7, batch_size=4, number=1)[0] for rank in range(7)]
    assert sorted(bool(part.weight) for part in parts) == [False] * 3 + [True] * 4
    assert all(len(part.content[0]) == 1 for part in parts)


def test_new_random_streams_differ_by_rank_and_by_step():
    seeds = {stream_seed(5, rank=rank, step=step) for rank in range(4) for step in (0, 10, 20)}
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed(5, rank=1, step=10) != stream_seed(6, rank=1, step=10)
