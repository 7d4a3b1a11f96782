"""Copies many tensors into prepared memory, with as many threads as torch has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import torch

_SHARED_BYTES = 32_768 * 4
"""Smallest size in bytes at which torch itself uses several threads for a copy (at::internal::GRAIN_SIZE)."""
_WORTH_A_THREAD_BYTES = 4 * 2**20


class Copier:
    """Copies tensors into the same views, many times.

    Torch copies small tensors one after the other on one thread. This class divides small tensors among as many threads
    as torch uses for a large tensor. The division is computed once, because reading the sizes of 10,000 tensors takes
    long.
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
        """Copy each tensor into the view with the same index. When the method returns, all copies are done."""
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
        copy(self._large)  # Torch itself uses several threads for each of these.


@torch.no_grad()
def copy_all(views: Sequence[torch.Tensor], live: Sequence[torch.Tensor]) -> None:
    """Copy each tensor into the view with the same index, on this thread and the threads of torch."""
    if live:
        torch._foreach_copy_(list(views), list(live))


def _even_runs(numbers: Sequence[int], sizes: Sequence[int], *, count: int) -> list[list[int]]:
    """Divide the numbers into runs of about equal bytes.

    The result has fewer than `count` runs if runs would be too small.
    """
    ends = list(accumulate(sizes[number] for number in numbers))
    count = min(count, ends[-1] // _WORTH_A_THREAD_BYTES if ends else 0)
    cuts = [0, *(bisect_left(ends, ends[-1] * number // count) + 1 for number in range(1, count)), len(numbers)]
    return [list(numbers[start:stop]) for start, stop in pairwise(cuts) if start < stop]
