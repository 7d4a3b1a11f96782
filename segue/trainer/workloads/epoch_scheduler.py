"""A warning about schedulers that look as if they were meant to count epochs."""

from __future__ import annotations

import logging
from typing import Any

from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, StepLR

log = logging.getLogger(__name__)

_LEAST_GAMMA = 0.99
"""An exponential decay by a smaller factor ends a run within some hundred steps."""


def warn_of_epochs(scheduler: Any, *, steps_per_epoch: int) -> None:
    """Log a warning if the scheduler, stepped after each step, would do within one epoch what it should do in many."""
    kind = type(scheduler)
    is_early = (
        (kind is StepLR and scheduler.step_size < steps_per_epoch)
        or (kind is MultiStepLR and min(scheduler.milestones, default=steps_per_epoch) < steps_per_epoch)
        or (kind is ExponentialLR and scheduler.gamma < _LEAST_GAMMA)
    )
    if is_early:
        log.warning(
            "the scheduler counts steps and looks as if it should count epochs; "
            "set scheduler_every to 'epoch' or to 'step' scheduler=%s steps_per_epoch=%d",
            kind.__name__,
            steps_per_epoch,
        )
