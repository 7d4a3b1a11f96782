"""Copying many tensors at once into prepared memory, with as many threads as torch has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import torch

_SHARED_BYTES = 32_768 * 4
"""From this size on torch itself spreads a copy over its threads (at::internal::GRAIN_SIZE)."""
_WORTH_A_THREAD_BYTES = 4 * 2**20


class Copier:
    """Fills the same views again and again.

    Torch copies small tensors one after the other on one thread. This class spreads runs of them over as many threads
    as torch uses for a large tensor. The runs are planned once: reading the sizes of ten thousand tensors takes as long
    as copying some of them.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        self._views = list(views)
        sizes = [view.nbytes for view in views]
        small = [number for number, size_bytes in enumerate(sizes) if size_bytes < _SHARED_BYTES]
        shares = _even_runs(small, sizes, count=torch.get_num_threads())
        large = [number for number, size_bytes in enumerate(sizes) if size_bytes >= _SHARED_BYTES]
        self._shares = [(share, [views[number] for number in share]) for share in shares]
        self._large = (large, [views[number] for number in large])

    def copy(self, live: Sequence[torch.Tensor]) -> None:
        """Copy each tensor into the view at its place; all is done on return."""
        if len(self._shares) < 2:
            copy_all(self._views, live)
            return

        def copy(share: tuple[list[int], list[torch.Tensor]]) -> None:
            numbers, views = share
            copy_all(views, [live[number] for number in numbers])

        with ThreadPoolExecutor(len(self._shares) - 1, thread_name_prefix="segue-copy") as others:
            copying = [others.submit(copy, share) for share in self._shares[1:]]
            copy(self._shares[0])
            for copied in copying:
                copied.result()
        copy(self._large)  # Torch has threads of its own for each of these.


@torch.no_grad()
def copy_all(views: Sequence[torch.Tensor], live: Sequence[torch.Tensor]) -> None:
    """Copy each tensor into the view at its place, on this thread and torch's threads."""
    if live:
        torch._foreach_copy_(list(views), list(live))


def _even_runs(numbers: Sequence[int], sizes: Sequence[int], *, count: int) -> list[list[int]]:
    """Runs of neighbours with about as many bytes each; fewer than `count` if each would be small."""
    ends = list(accumulate(sizes[number] for number in numbers))
    count = min(count, ends[-1] // _WORTH_A_THREAD_BYTES if ends else 0)
    cuts = [0, *(bisect_left(ends, ends[-1] * number // count) + 1 for number in range(1, count)), len(numbers)]
    return [list(numbers[start:stop]) for start, stop in pairwise(cuts) if start < stop]
