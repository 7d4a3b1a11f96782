"""Makes the names of tensor slices, of components of a single rank, and of files in folders.

The module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

from segue.checkpoints.format.layout import TensorSlice

FOLDER = "folder"
"""Name of the component for programs that commit the checkpoint folder of a framework."""

_SEPARATOR = "@"
_OF_RANK = re.compile(rf"{_SEPARATOR}(\d+)$")


def leads_out(path: str) -> bool:
    """Whether the path of a file in a checkpoint leads out of the folder."""
    parts = PurePosixPath(path).parts
    return not parts or parts[0] == "/" or ".." in parts


def slice_name(tensor_slice: TensorSlice) -> str:
    """Return the name under which a slice is stored. The name is unique among all slices of a state."""
    return f"{tensor_slice.tensor}{_SEPARATOR}{','.join(map(str, tensor_slice.offsets))}"


def of_rank(component: str, rank: int) -> str:
    """Return the name of this rank's copy of a component that each rank has separately. Rank 0 uses the plain name."""
    return f"{component}{_SEPARATOR}{rank}" if rank else component


def is_of_rank(name: str, rank: int) -> bool:
    """Whether a tensor belongs to a component that only this rank has. The result is False for rank 0."""
    if not rank:
        return False
    _, separator, rest = name.partition(f"{_SEPARATOR}{rank}")
    return bool(separator) and (not rest or rest.startswith("."))


def rank_of(component: str, components: Collection[str]) -> int | None:
    """Return the rank to which a component belongs. Return None if all ranks share the component.

    The rank follows from the names of all components of the state.
    """
    found = _OF_RANK.search(component)
    if found is not None:
        return int(found[1])
    return 0 if of_rank(component, 1) in components else None
