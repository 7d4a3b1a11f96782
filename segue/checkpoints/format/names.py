"""Names of what belongs to one rank: tensor slices, and components that every rank has for itself. No torch here."""

from __future__ import annotations

from segue.checkpoints.format.layout import TensorSlice

_SEPARATOR = "@"


def slice_name(tensor_slice: TensorSlice) -> str:
    """The name under which a slice is stored: unique among the slices of a state."""
    return f"{tensor_slice.tensor}{_SEPARATOR}{','.join(map(str, tensor_slice.offsets))}"


def of_rank(component: str, rank: int) -> str:
    """The name of a component that every rank has for itself; rank 0's is the plain one."""
    return f"{component}{_SEPARATOR}{rank}" if rank else component


def is_of_rank(name: str, rank: int) -> bool:
    """Whether a tensor belongs to a component that this rank has in addition to rank 0's."""
    if not rank:
        return False
    _, separator, rest = name.partition(f"{_SEPARATOR}{rank}")
    return bool(separator) and (not rest or rest.startswith("."))
