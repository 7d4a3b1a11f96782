"""The check that tutorials recommend: whether the loss is smooth around a resume. The functions are pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

BEFORE_STEPS, AFTER_STEPS = 50, 20
_WORSE_MEAN, _MUCH_WORSE_MEAN, _SIGMAS = 1.05, 1.2, 3.0


def is_mean_worse(before: Sequence[float], after: Sequence[float]) -> bool:
    """Rule A: the mean loss after the resume is more than 5 % above the mean before."""
    return not _mean(after) <= _WORSE_MEAN * _mean(before)


def has_outlier(before: Sequence[float], after: Sequence[float]) -> bool:
    """Rule B: a loss after the resume lies 3 sigma above the mean before, or their mean is 20 % above it."""
    limit = _mean(before) + _SIGMAS * statistics.pstdev(before)
    return any(not loss <= limit for loss in after) or not _mean(after) <= _MUCH_WORSE_MEAN * _mean(before)


def windows(losses: Mapping[int, float], *, parent_step: int) -> tuple[list[float], list[float]]:
    """The losses of the 50 steps before the parent and of the 20 steps after it, by step, as far as they exist."""
    before = [losses[n] for n in range(parent_step - BEFORE_STEPS + 1, parent_step + 1) if n in losses]
    after = [losses[n] for n in range(parent_step + 1, parent_step + AFTER_STEPS + 1) if n in losses]
    return before, after


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses) if losses else math.nan
