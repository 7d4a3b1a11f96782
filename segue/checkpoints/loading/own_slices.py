"""Finds the stored slices that a rank needs. All ranks together then read a sharded state once, and not once per rank.

If only some slices of a tensor were read, the tensor is on the meta device, so that it cannot be read by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from segue.checkpoints.format.dtensor import is_sharded, slice_of
from segue.checkpoints.format.layout import TensorSlice


class _Place(NamedTuple):
    """The place of a slice in its tensor."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class OwnSlices:
    """The places of the slices of this rank. The state of an optimizer is sharded like its parameters."""

    places: frozenset[_Place]

    @classmethod
    def of(cls, parameters: Iterable[torch.Tensor]) -> OwnSlices | None:
        """Return the slices of these parameters. Return None if no parameter is sharded."""
        places = set()
        has_sharded = False
        for parameter in parameters:
            if is_sharded(parameter):
                has_sharded = True
                own, local = slice_of("parameter", parameter), parameter.to_local()
                if local.numel():  # No rank stores an empty slice.
                    places.add(_Place(own.shape, own.offsets, tuple(local.shape)))
        return cls(frozenset(places)) if has_sharded else None

    def others(self, slices: Mapping[str, TensorSlice], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Return the names of the stored slices that only other ranks need.

        The result is empty if the state was sharded in another way.
        """
        stored = {name: _Place(each.shape, each.offsets, shapes[name]) for name, each in slices.items()}
        if not self.places <= set(stored.values()):
            return frozenset()
        # If no slice of a tensor is at one of these places, it is not known which rank needs which slice.
        mine = {slices[name].tensor for name, place in stored.items() if place in self.places}
        return frozenset(
            name for name, place in stored.items() if slices[name].tensor in mine and place not in self.places
        )
