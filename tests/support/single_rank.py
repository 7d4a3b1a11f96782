"""What tests of several ranks compare with: one rank alone, beside segue's own loop, and what was committed."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.continuity.fingerprints import batch_fingerprint
from segue.data.loader import Feed
from segue.data.streams import seed_all
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.trainer.workloads.steps.step import begin_step
from tests.recipes.ranked import even


class Done(NamedTuple):
    """A run of so many steps in one process."""

    parameters: dict[str, torch.Tensor]
    batch_fingerprints: dict[int, str]


def even_here(steps: int, **config: object) -> Done:
    """The even recipe, in this process."""
    seed_all(0)
    recipe = even(config)
    feed = Feed(recipe.data, recipe="even", seed=0)
    marks = {}
    for step, batch in enumerate(itertools.islice(feed.batches(0), steps), start=1):
        begin_step(recipe, [batch.content], step=step).read()
        marks[step] = batch_fingerprint(batch.ids)
    return Done({name: p.detach() for name, p in recipe.model.named_parameters()}, marks)


def read_all(runlog: RunLog) -> dict[int, dict[str, torch.Tensor]]:
    """Every checkpoint that the log offers, whole, every byte of it verified, by step."""
    usable = read_history(runlog.reload()).usable
    return {
        c.manifest.step: read_checkpoint(runlog.store, run_id=runlog.run_id, manifest=c.manifest).tensors
        for c in usable
    }
