"""The coarsest number format that a step computes in: how much one rounding may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.autograd.graph import saved_tensors_hooks

from segue.continuity.noise import UNIT

_TF32_UNIT = 2.0**-10
_MOST_UNIT = 2.0**-7
"""The unit of bf16. Coarser formats hold scaled values for single products, not results."""


@dataclass
class Formats:
    """The number formats that were seen."""

    unit: float = UNIT
    """Distance of 1 to the next number of the coarsest format: the largest relative change of a value by a rounding."""

    def add(self, dtype: torch.dtype) -> None:
        if dtype.is_floating_point:
            self.unit = max(self.unit, min(torch.finfo(dtype).eps, _MOST_UNIT))


@contextmanager
def noting_formats() -> Iterator[Formats]:
    """The formats of the tensors that are saved for a backward pass until the block ends. It changes no number."""
    formats = Formats(_TF32_UNIT if _is_tf32() else UNIT)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        formats.add(tensor.dtype)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield formats


def _is_tf32() -> bool:
    """Whether accelerators round the factors of products of matrices, or of convolutions, to ten bits."""
    return torch.cuda.is_available() and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
