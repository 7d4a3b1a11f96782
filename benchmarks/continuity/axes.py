"""The figures of each axis of the continuity benchmark, and of all axes together. Pure.

A kind is detected if every resume of this kind is called broken. Shares are shares of kinds, so that a kind with many
resumes has no greater weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW_STEPS = 8
"""Number of steps that a resume replays. Faults that act later are counted separately."""


@dataclass(frozen=True)
class Trial:
    """One resume and its verdict."""

    kind: str
    axis: str
    is_sound: bool = False
    """Whether the resume loses nothing, so that `broken` is a false alarm."""
    is_found: bool = False
    is_named: bool = False
    """Whether the finding names the lost state. "Outside the checkpoint" does not count as a name."""
    is_advised: bool = False
    """Whether the finding has a fix."""
    is_enough: bool | None = None
    """Whether a resume is exact after the fix was applied literally; None: not tried."""
    is_foregone: bool = False
    """Whether the fault edits the data that a component loads, so that the component's own digest shows the fault."""
    acts_after: int | None = 1
    """Number of steps from the resume to the first step that differs; None: no step differs, so nothing was lost."""
    is_named_at_commit: bool | None = None
    """Whether the first commit names the lost state without a resume; None: training does not change this state."""
    noise: str = ""
    """The recipe under whose noise the resume was made."""


def figures(trials: Iterable[Trial]) -> dict[str, Any]:
    """Shares of kinds and the count of false alarms over all axes, and `axes` with the same for each."""
    made = list(trials)
    counted = [trial for trial in made if not trial.is_foregone]
    names = list(dict.fromkeys(trial.axis for trial in counted))
    return {
        **_shares(_within(counted)),
        "clean": sum(trial.is_sound for trial in counted),
        "false_alarms": sum(trial.is_sound and trial.is_found for trial in counted),
        "axes": {name: _axis([trial for trial in counted if trial.axis == name]) for name in names},
        "foregone": _shares([trial for trial in made if trial.is_foregone]),
        **_of_advice([trial for trial in counted if trial.is_enough is not None]),
    }


def _axis(trials: Sequence[Trial]) -> dict[str, Any]:
    faults, sound = _within(trials), [trial for trial in trials if trial.is_sound]
    later = [t for t in trials if not t.is_sound and t.acts_after is not None and t.acts_after > WINDOW_STEPS]
    stateful = [trial for trial in trials if trial.is_named_at_commit is not None and trial.acts_after is not None]
    row = {
        **_shares(faults),
        "clean": len(sound),
        "false_alarms": sum(trial.is_found for trial in sound),
        "missed": _kinds(faults, lambda trial: not trial.is_found),
        "unnamed": _kinds(faults, lambda trial: trial.is_found and not trial.is_named),
        "called_broken": _kinds(sound, lambda trial: trial.is_found),
    }
    if stateful:
        row["named_at_first_commit_share"] = _share(stateful, lambda trial: bool(trial.is_named_at_commit))
        row["unnamed_at_first_commit"] = _kinds(stateful, lambda trial: not trial.is_named_at_commit)
    row |= _of_advice([trial for trial in trials if trial.is_enough is not None])
    if later:
        row["later"] = {**_shares(later), "missed": _kinds(later, lambda trial: not trial.is_found)}
    without = _kinds(trials, lambda trial: not trial.is_sound and trial.acts_after is None)
    if without:
        row["without_effect"] = without
    by_noise = {name: [t for t in trials if t.noise == name] for name in dict.fromkeys(t.noise for t in trials) if name}
    if by_noise:
        row["by_noise"] = {name: _of_noise(found) for name, found in by_noise.items()}
    return row


def _of_advice(trials: Sequence[Trial]) -> dict[str, Any]:
    """Share of the resumes with an applied fix for which the fix is sufficient."""
    if not trials:
        return {}
    short = _kinds(trials, lambda trial: not trial.is_enough)
    return {"enough_share": _share(trials, lambda trial: bool(trial.is_enough)), "advice_not_enough": short}


def _of_noise(trials: Sequence[Trial]) -> dict[str, Any]:
    faults, sound = _within(trials), [trial for trial in trials if trial.is_sound]
    return {
        **_shares(faults),
        "clean": len(sound),
        "false_alarms": sum(trial.is_found for trial in sound),
        "missed": _kinds(faults, lambda trial: not trial.is_found),
    }


def _within(trials: Sequence[Trial]) -> list[Trial]:
    """The faults that act within the steps that a resume replays."""
    return [t for t in trials if not t.is_sound and t.acts_after is not None and t.acts_after <= WINDOW_STEPS]


def _shares(faults: Sequence[Trial]) -> dict[str, Any]:
    return {
        "kinds": len({trial.kind for trial in faults}),
        "detected_share": _share(faults, lambda trial: trial.is_found),
        "named_share": _share(faults, lambda trial: trial.is_found and trial.is_named),
        "advised_share": _share(faults, lambda trial: trial.is_found and trial.is_advised),
    }


def _share(trials: Sequence[Trial], is_so: Any) -> float | None:
    """The mean over kinds of the share of trials for which the predicate is true."""
    by_kind: dict[tuple[str, str], list[bool]] = {}
    for trial in trials:
        by_kind.setdefault((trial.kind, trial.noise), []).append(bool(is_so(trial)))
    if not by_kind:
        return None
    return round(sum(sum(found) / len(found) for found in by_kind.values()) / len(by_kind), 5)


def _kinds(trials: Sequence[Trial], is_so: Any) -> list[str]:
    return list(dict.fromkeys(trial.kind for trial in trials if is_so(trial)))
