"""The setup of a run, compared between a checkpoint and the process that resumes from it. Pure.

The setup is what a recipe or a program is before it has any state: modules, settings, code, data, and what comes next.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from segue.records import Finding

MODEL = "setup.model"
"""Each module's class and settings, each tensor's type and shape."""
HYPERPARAMETERS = "setup.hyperparameters"
"""Plain values of everything the recipe is made of, as built."""
CODE = "setup.code"
"""The user's functions and classes, by bytecode; of a program, its files."""
DATA = "setup.data"
"""Arrays and long lists of the data set, large ones sampled."""
BINDING = "setup.binding"
"""Which live parameters the optimizer holds."""
NEXT_BATCHES = "data.next"
"""The samples of the next four batches."""
CONFIG = "setup.config"
"""What the run spec passes to the recipe or the program. A change of it has been accepted before (`--accept-drift`)."""
UNTRACKED = "loose"
"""Untracked state: values that training changed and no state_dict holds. They explain a replay that differs."""

CHANNEL = "setup"
"""The channel of findings about the setup."""

CHANGEABLE = (MODEL, HYPERPARAMETERS, CODE, DATA, BINDING)
"""What a person may change on purpose during a run, and accept by name."""
COMPARED = (*CHANGEABLE, NEXT_BATCHES)
NOT_STATE = frozenset((*COMPARED, CONFIG, UNTRACKED))
"""Components that are compared and not restored: their digests are not judged like those of state."""

_OF_VERSIONS = ("torch", "python")
_MOST_SHOWN = 3
_ABSENT = "absent"


@dataclass(frozen=True)
class SetupChanges:
    """Differences between the setup and the checkpoint's."""

    findings: tuple[Finding, ...] = ()
    """Changes that were not accepted."""
    accepted: tuple[Finding, ...] = ()
    """Changed on purpose: with a new config, or named in the run spec."""
    noted: tuple[Finding, ...] = ()
    """Differences that may come from the process or the machine; they explain rows that differ, and count only then."""


def setup_changes(
    committed: Mapping[str, Any],
    live: Mapping[str, Any],
    *,
    environment_changes: Collection[str],
    accept: Collection[str] = (),
) -> SetupChanges:
    """Compare two setups, each component by itself.

    A checkpoint without a setup gives no findings. With another version of torch or Python, entries that only one side
    has are not compared, and with another Python no code: the versions decide which entries and which bytecode exist.
    """
    other_versions = not set(_OF_VERSIONS).isdisjoint(environment_changes)
    other_config = CONFIG in committed and committed[CONFIG] != live.get(CONFIG)
    found: dict[str, list[Finding]] = {"findings": [], "accepted": [], "noted": []}
    for component in COMPARED:
        if component not in committed or component not in live:
            continue
        if component == CODE and "python" in environment_changes:
            continue
        changes = differences(committed[component], live[component], both_only=other_versions)
        for noted in (False, True):
            these = [change for change in changes if _is_only_noted(component, change) is noted]
            if these:
                finding = Finding(component=component, channel=CHANNEL, sentence=_sentence(component, these))
                is_meant = other_config or component in accept
                if component == NEXT_BATCHES:  # They follow from the settings and the data.
                    is_meant = any(other.component in (HYPERPARAMETERS, DATA) for other in found["accepted"])
                found["noted" if noted else "accepted" if is_meant else "findings"].append(finding)
    return SetupChanges(**{name: tuple(these) for name, these in found.items()})


def _is_only_noted(component: str, change: str) -> bool:
    """Whether a difference is not judged alone: values of objects that handle samples, or are called after steps."""
    return (component == HYPERPARAMETERS and change.startswith(_OF_HANDLERS)) or (
        component == CODE and change.startswith((*_OF_HANDLERS, "globals of "))
    )


_OF_HANDLERS = ("data.dataset.", "data.collate_fn.", "data.worker_init_fn.", "after_step.")


def differences(before: Any, now: Any, *, both_only: bool = False, path: str = "") -> list[str]:
    """What differs between two trees of plain data, each by its path, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key in sorted(before.keys() | now.keys()):
            if both_only and (key not in before or key not in now):
                continue
            below = f"{path}.{key}" if path else key
            one, other = before.get(key, _ABSENT), now.get(key, _ABSENT)
            found += differences(one, other, both_only=both_only, path=below)
        return found
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [
            text
            for number, (one, other) in pairs
            for text in differences(one, other, both_only=both_only, path=f"{path}.{number}" if path else str(number))
        ]
    if type(before) is type(now) and before == now:
        return []
    return [f"{path or 'its value'} was {_short(before)}, now {_short(now)}"]


def untracked_changes(committed: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Which untracked values differ from those at the commit, in words; empty when none does."""
    changes = differences(committed.get(UNTRACKED, {}), live.get(UNTRACKED, {}))
    if not changes:
        return ""
    # Only what has changed since the recipe was built is kept.
    shown = [change.removesuffix(_ABSENT) + "as built" if change.endswith(_ABSENT) else change for change in changes]
    more = f" and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else ""
    return f"untracked state was not restored (values in no state_dict: {'; '.join(shown[:_MOST_SHOWN])}{more})"


_MEANINGS = {
    MODEL: "the model's modules or tensors changed",
    HYPERPARAMETERS: "a setting changed",
    CODE: "the code changed",
    DATA: "the content of the data set changed",
    BINDING: "the optimizer holds other tensors than before",
    NEXT_BATCHES: "the next batches have other samples",
}


def _sentence(component: str, changes: list[str]) -> str:
    shown = [_in_words(change) for change in changes[:_MOST_SHOWN]]
    more = f" and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else ""
    fix = (
        f"; undo the change, or accept it by naming {component} in continuity.accept" if component in CHANGEABLE else ""
    )
    return f"{_MEANINGS[component]}: {'; '.join(shown)}{more}{fix}"


def _in_words(change: str) -> str:
    """Of two hashes a reader learns no more than that they differ."""
    return _HASHES.sub(lambda found: f" is {_NEWS.get((found[1][:1], found[2][:1]), 'changed')}", change)


_HASHES = re.compile(r" was ('[0-9a-f,]{16,}'|absent), now ('[0-9a-f,]{16,}'|absent)$")
_NEWS = {("a", "'"): "new", ("'", "a"): "gone"}


def _short(value: Any) -> str:
    """The value in at most 80 characters. Paths of code differ at their ends, so the middle is left out."""
    text = _ABSENT if value is _ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:38]}...{text[-39:]}"
