"""Clean resumes that look suspicious. Every verdict on them except exact or equivalent is a false alarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from segue.records import VerdictKind

RESUME_STEP = 56
"""Step of the first resume of a control. Each later resume comes eight steps after the previous resume."""
WINDOW_STEPS = 8
_BATCH = 32


def _nothing(model: str) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Control:
    """One kind of clean resume."""

    name: str
    config: Callable[[str], Mapping[str, Any]] = _nothing
    """Config of all attempts, by model."""
    expected: VerdictKind = VerdictKind.EXACT
    threads: int = 1
    """Number of threads of every second attempt. The first attempt, and every second attempt after it, has one
    thread."""
    ends_before: int = 0
    """Number of steps before the resume point at which the first attempt ends."""
    damages_newest: bool = False
    """Whether a byte of the newest checkpoint is changed, so that the resume must use the previous checkpoint."""


def _always(**config: Any) -> Callable[[str], Mapping[str, Any]]:
    return lambda _: config


def _drops(model: str) -> Mapping[str, Any]:
    milestones = [RESUME_STEP + WINDOW_STEPS * n for n in range(20)]
    return {"schedule": "milestones", "milestones": milestones}


def _tiny(model: str) -> Mapping[str, Any]:
    # Batch norm refuses a batch of one.
    return {"batch_size": 1 if model == "text" else 2, "samples": 300}


CONTROLS = (
    Control("plain"),
    Control("learning rate drops at the resume point", _drops),
    Control("epoch ends at the resume point", _always(samples=_BATCH * WINDOW_STEPS)),
    # Seven full batches and a short one: a resume at a multiple of eight steps, less one, begins with the short one.
    Control(
        "short last batch around the resume point", _always(samples=_BATCH * 7 + 5, drop_last=False), ends_before=1
    ),
    Control("curriculum changes at the resume point", _always(curriculum_at=RESUME_STEP)),
    Control("tiny batches", _tiny),
    Control("batches of four", _always(batch_size=4)),
    Control("another number of threads", expected=VerdictKind.EQUIVALENT, threads=2),
    Control("strong augmentation", _always(noise=0.4, noise_probability=0.9)),
    Control("two workers", _always(workers=2)),
    Control("scaler that skips steps", _always(scaler_init=2.0**126, scaler_growth_interval=3)),
    Control("counter for a log", _always(hidden="log")),
    Control("time of the last fetch", _always(hidden="timestamp")),
    Control("cache that grows", _always(hidden="cache")),
    Control("newest checkpoint damaged", damages_newest=True),
)
