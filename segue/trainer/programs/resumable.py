"""A loader with a state, for frameworks that save and load this state as a part of their own checkpoint."""

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
    """A DataLoader that can continue an interrupted pass with its next batch, in the loader's own order.

    The first batch after a resume is fetched with the same random streams as in the interrupted pass, so that
    transforms in the main process draw the same numbers. The length and all other attributes are those of the given
    loader.

    Raises:
        SessionError: the loader has no position that can be resumed; the message names the alternatives.
    """

    def __init__(self, loader: Any) -> None:
        """Worker processes seed their random streams from torch's seed, so the script must set this seed first."""
        self._loader, self._batches = loader, BatchesComponent(loader, seed=torch.initial_seed())
        self._streams: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass, or the remaining batches of an interrupted pass."""
        streams, self._streams = self._streams, {}
        for batch in self._batches.one_pass(fetch_with=streams):
            yield batch.content

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def end_pass(self) -> None:
        """End the pass, so that the next batch is the first batch of a new pass."""
        self._batches.end_whole()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the pass, as plain values and tensors that torch loads without running code."""
        streams = {name: stream.capture() for name, stream in rng_components(Ranks(), nn.Module()).items()}
        tree = {"batches": self._batches.capture(), "streams": streams}
        tensors: dict[str, torch.Tensor] = {}
        return {"values": encode_tree(tree, path="loader", tensors=tensors), "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this state in the next pass."""
        tree = decode_tree(state["values"], state["tensors"])
        self._batches.restore(tree["batches"])
        self._streams = tree["streams"]
