"""What became of one resume of a script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BlindOutcome:
    """One resume of a case, and what was said about it."""

    name: str
    axis: str
    verdict: str
    """Of the resume; `refused` where the recipe was not restored, `raised` where a step raised before a verdict."""
    component: str | None = None
    """Of the first finding."""
    sentence: str = ""
    fix: str = ""
    found_at: int | None = None
    """Step of the first finding."""
    is_sound: bool = False
    is_found: bool = False
    is_named: bool = False
    acts_after: int | None = None
    """Steps from the resume to the first one that is not as in an uninterrupted run; None: there was none."""
    window: int = 8
    is_named_at_commit: bool | None = None
    """Whether a commit of the first attempt names the state; None: it is no state that training changes."""
    is_enough: bool | None = None
    """Whether the resume is exact once all its advice was followed; None: that was not tried."""
    noise: str = ""
    """The recipe under whose noise the resume was made; empty: kernels are deterministic."""
    drill: str | None = None
    """Verdict of the resume rehearsal."""
    problem: str = ""
    """What kept the resume from being made."""
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
