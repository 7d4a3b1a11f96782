"""Names of one rank's parts (tensor slices, its own components) and of files in folders. No torch here."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

from segue.checkpoints.format.layout import TensorSlice

FOLDER = "folder"
"""The component of a program that commits a framework's own checkpoint folder."""

_SEPARATOR = "@"
_OF_RANK = re.compile(rf"{_SEPARATOR}(\d+)$")


def leads_out(path: str) -> bool:
    """Whether a file's path, as a checkpoint holds it, names a file outside of its folder."""
    parts = PurePosixPath(path).parts
    return not parts or parts[0] == "/" or ".." in parts


def slice_name(tensor_slice: TensorSlice) -> str:
    """The name under which a slice is stored: unique among the slices of a state."""
    return f"{tensor_slice.tensor}{_SEPARATOR}{','.join(map(str, tensor_slice.offsets))}"


def of_rank(component: str, rank: int) -> str:
    """The name of a component that every rank has for itself; rank 0 uses the plain name."""
    return f"{component}{_SEPARATOR}{rank}" if rank else component


def is_of_rank(name: str, rank: int) -> bool:
    """Whether a tensor belongs to a component that this rank has in addition to rank 0's."""
    if not rank:
        return False
    _, separator, rest = name.partition(f"{_SEPARATOR}{rank}")
    return bool(separator) and (not rest or rest.startswith("."))


def rank_of(component: str, components: Collection[str]) -> int | None:
    """The rank that a component belongs to, by the names of all components of a state; None: all ranks share it."""
    found = _OF_RANK.search(component)
    if found is not None:
        return int(found[1])
    return 0 if of_rank(component, 1) in components else None
