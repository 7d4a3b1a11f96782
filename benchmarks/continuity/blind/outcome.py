"""The outcome of one resume of a script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BlindOutcome:
    """One resume of a case and its verdict."""

    name: str
    axis: str
    verdict: str
    """Verdict of the resume; `refused` if the recipe was not restored, `raised` if a step raised before a verdict."""
    component: str | None = None
    """Component of the first finding."""
    sentence: str = ""
    fix: str = ""
    found_at: int | None = None
    """Step of the first finding."""
    is_sound: bool = False
    is_found: bool = False
    is_named: bool = False
    acts_after: int | None = None
    """Number of steps from the resume to the first step that differs from an uninterrupted run; None: no step
    differs."""
    window: int = 8
    is_named_at_commit: bool | None = None
    """Whether a commit of the first attempt names the state; None: training does not change this state."""
    is_enough: bool | None = None
    """Whether the resume is exact after all its fixes were applied; None: not tried."""
    noise: str = ""
    """The recipe under whose noise the resume was made; empty: kernels are deterministic."""
    drill: str | None = None
    """Verdict of the resume rehearsal."""
    problem: str = ""
    """The reason why the resume was not made."""
    seconds: float = 0.0

    @property
    def is_advised(self) -> bool:
        return bool(self.fix)

    @property
    def acts_within_window(self) -> bool:
        return self.acts_after is not None and self.acts_after <= self.window

    @property
    def is_alarm(self) -> bool:
        """Whether a resume that lost nothing was called broken, or refused."""
        return self.is_sound and self.is_found

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> BlindOutcome:
        return cls(**fields)
