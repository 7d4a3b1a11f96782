"""A loader with a state: for loops of frameworks, which save and load it with their own checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.trainer.programs.batches import BatchesComponent
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.state import rng_components


class ResumableLoader:
    """A DataLoader that continues with the next batch of an interrupted pass, in its own order.

    The first batch after a resume is fetched with the random streams as they were before it, so that transforms in the
    main process draw the same numbers. The length and all other attributes are the loader's own.

    Raises:
        SessionError: the loader has no position that could be resumed; the message names the ways out.
    """

    def __init__(self, loader: Any) -> None:
        """Worker processes seed their random streams from torch's seed, so set that seed first, as scripts do."""
        self._loader, self._batches = loader, BatchesComponent(loader, seed=torch.initial_seed())
        self._streams: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        """One pass, or the rest of one."""
        streams, self._streams = self._streams, {}
        for batch in self._batches.one_pass(fetch_with=streams):
            yield batch.content

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def end_pass(self) -> None:
        """The next batch is the first of another pass, though nobody has asked whether this pass has more batches."""
        self._batches.end_whole()

    def state_dict(self) -> dict[str, Any]:
        """The position in the pass: plain values and tensors, which torch loads without running code."""
        streams = {name: stream.capture() for name, stream in rng_components(Ranks(), nn.Module()).items()}
        tree = {"batches": self._batches.capture(), "streams": streams}
        tensors: dict[str, torch.Tensor] = {}
        return {"values": encode_tree(tree, path="loader", tensors=tensors), "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this state at the next pass."""
        tree = decode_tree(state["values"], state["tensors"])
        self._batches.restore(tree["batches"])
        self._streams = tree["streams"]
