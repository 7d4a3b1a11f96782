"""Bugs of resumes that public projects had in their data: the loop they wrote has them, segue's feed cannot.

The loop is the one of the tutorials: restore the random streams, iterate the DataLoader, throw away what was seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from segue.continuity.fingerprints import input_fingerprint
from segue.data.loader import Feed
from segue.data.streams import seed_all

COUNT, BATCH_SIZE, SEEN = 64, 8, 3
"""Samples, samples a batch, and batches that were trained on before the resume."""


class Numbers(Dataset[Any]):
    """Each sample is its own id, and a draw from a global stream as an augmentation takes it."""

    def __init__(self, draw: Callable[[], float] = lambda: 0.0) -> None:
        self._draw = draw

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), self._draw()])


def noise_of_torch() -> float:
    return torch.rand(()).item()


def noise_of_numpy() -> float:
    return float(np.random.random())


def seed_by_worker(worker: int) -> None:
    np.random.seed(worker)


class Counting(Sampler[int]):
    """A sampler that saves how many samples it has given out: to the workers, who hold some in stock."""

    def __init__(self, given: int = 0) -> None:
        self.given = given

    def __iter__(self) -> Iterator[int]:
        while self.given < COUNT:
            self.given += 1
            yield self.given - 1


def ids(batches: list[torch.Tensor]) -> list[list[float]]:
    return [batch[:, 0].tolist() for batch in batches]


def contents(batches: list[Any]) -> list[str]:
    return [input_fingerprint(batch) for batch in batches]


def by_the_tutorial(loader: DataLoader[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The batches that a whole run gets after the checkpoint, and those that the resumed run gets."""
    seed_all(5)
    whole = []
    for number, batch in enumerate(loader, start=1):
        whole.append(batch)
        if number == SEEN:
            saved = torch.get_rng_state()
    seed_all(6)  # The resumed process has drawn other numbers before it restores the stream.
    torch.set_rng_state(saved)
    resumed = [batch for number, batch in enumerate(loader, start=1) if number > SEEN]
    return whole[SEEN:], resumed


def by_segue(loader: DataLoader[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The same of segue: the stream is restored, and the feed gets the number of samples seen."""
    seed_all(5)
    batches = Feed(loader, recipe="test:build", seed=1).batches(0)
    list(itertools.islice(batches, SEEN))
    saved = torch.get_rng_state()
    rest = COUNT // BATCH_SIZE - SEEN
    whole = [batch.content for batch in itertools.islice(batches, rest)]
    seed_all(6)
    torch.set_rng_state(saved)
    again = Feed(loader, recipe="test:build", seed=1).batches(SEEN * BATCH_SIZE)
    return whole, [batch.content for batch in itertools.islice(again, rest)]


def test_a_shuffle_drawn_from_the_restored_stream_is_another_one():
    """huggingface/accelerate#4233: iterating draws a permutation; what is skipped is skipped in a new one."""
    loader = DataLoader(Numbers(), batch_size=BATCH_SIZE, shuffle=True)
    whole, resumed = by_the_tutorial(loader)
    assert sorted(itertools.chain(*ids(resumed))) != sorted(itertools.chain(*ids(whole)))
    whole, resumed = by_segue(loader)
    assert ids(resumed) == ids(whole)


def test_a_stream_restored_before_the_skip_is_used_up_by_the_skip():
    """huggingface/transformers#46628: the batches that are thrown away draw their augmentation too."""
    loader = DataLoader(Numbers(noise_of_torch), batch_size=BATCH_SIZE, generator=torch.Generator().manual_seed(0))
    whole, resumed = by_the_tutorial(loader)
    assert ids(resumed) == ids(whole)  # The order is right, so nothing looks wrong.
    assert not set(contents(resumed)) & set(contents(whole))
    whole, resumed = by_segue(loader)
    assert contents(resumed) == contents(whole)


@pytest.mark.matrix
def test_workers_seeded_by_their_number_repeat_the_noise_of_the_start():
    """fangchangma/sparse-to-dense.pytorch#19: after a resume the augmentation of the first batches comes again."""
    loader = DataLoader(
        Numbers(noise_of_numpy), batch_size=BATCH_SIZE, num_workers=2, worker_init_fn=seed_by_worker, shuffle=True
    )
    first, fresh = next(iter(loader)), next(iter(loader))
    assert first[:, 1].tolist() == fresh[:, 1].tolist()
    whole, resumed = by_segue(loader)
    assert contents(resumed) == contents(whole)
    assert len({tuple(batch[:, 1].tolist()) for batch in whole}) == len(whole)


def test_a_sampler_that_counts_what_it_gave_out_is_ahead_of_the_training():
    """lhotse-speech/lhotse#417: with workers the sampler is ahead by what they prefetch, and a resume skips that."""
    sampler = Counting()
    loader = DataLoader(Numbers(), batch_size=BATCH_SIZE, sampler=sampler, num_workers=2)
    consumed = list(itertools.islice(loader, SEEN))
    assert sampler.given > sum(map(len, consumed))
    resumed = next(iter(DataLoader(Numbers(), batch_size=BATCH_SIZE, sampler=Counting(sampler.given))))
    assert resumed[0, 0] > consumed[-1][-1, 0] + 1
    whole, again = by_segue(DataLoader(Numbers(), batch_size=BATCH_SIZE, num_workers=2))
    assert ids(again) == ids(whole)
    assert again[0][0, 0] == consumed[-1][-1, 0] + 1


def test_batches_to_skip_are_not_optimizer_steps():
    """huggingface/transformers#5605: two batches a step were trained, and one for each step was skipped."""
    loader, batches_a_step, steps = DataLoader(Numbers(), batch_size=BATCH_SIZE), 2, 2
    whole = list(loader)
    resumed = [batch for number, batch in enumerate(loader) if number >= steps]
    assert ids(resumed)[0] == ids(whole)[steps] != ids(whole)[steps * batches_a_step]
    feed = Feed(DataLoader(Numbers(), batch_size=BATCH_SIZE * batches_a_step), recipe="test:build", seed=1)
    seen = sum(len(batch.ids) for batch in itertools.islice(feed.batches(0), steps))
    assert next(feed.batches(seen)).ids[0] == ids(whole)[steps * batches_a_step][0]
