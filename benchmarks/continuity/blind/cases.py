"""Cases: typical training scripts, each with the expected verdict of a resume."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from segue.continuity.naming import OUTSIDE
from segue.continuity.naming import UNREGISTERED as STATE_OUTSIDE

Build = Callable[[dict[str, Any]], Any]


class Axis(StrEnum):
    """The axis of a case."""

    UNREGISTERED = "unregistered"
    PROCESS = "process values"
    DRIFT = "drift"
    LATE = "late"
    CARRIED = "carried"
    SOUND = "sound"
    NOISE = "non-determinism"


ANY = "*"
"""Stands for all components: every named component is right."""
NO_NAMES = frozenset({None, OUTSIDE})
UNREGISTERED = frozenset({STATE_OUTSIDE})
"""Components that are right for untracked state. The finding must also name the object."""
PARENT_STEP = 24
"""Step of the checkpoint from which the resume starts."""
SAVE_EVERY_STEPS = 12
WINDOW_STEPS = 8
"""Number of steps that a resume replays."""
_SCRIPTS, _CARRIED = "benchmarks.continuity.scripts", "benchmarks.continuity.carried.recipes"
_MODULES = (
    "functions",
    "places",
    "objects",
    "containers",
    "pipelines",
    "networks",
    "averages",
    "training",
    "process_values",
    "drifts",
    "late",
    "moments",
    "sound_logging",
    "sound_state",
    "sound_models",
    "sound_process",
    "noisy",
)


@dataclass(frozen=True)
class Moment:
    """An attempt before its start, for a world that may change between attempts."""

    attempt: int
    """Number of the attempt. 0 is the first attempt; higher numbers are resumed attempts."""
    folder: Path
    """The temporary folder of the attempt's script. The path is the same for every attempt."""


World = Callable[[Moment], None]


@dataclass(frozen=True)
class Case:
    """A training script, and the expected verdict of a resume."""

    name: str
    axis: Axis
    recipe: str
    """Path of the script's `build`, which is a separate function."""
    names: tuple[str, ...] = ()
    """Words of which the finding's sentence must contain one; empty: the component is sufficient as a name."""
    components: frozenset[str] = UNREGISTERED
    """Components that a finding may rightly name."""
    window: int = WINDOW_STEPS
    """Steps after the resume within which the fault acts."""
    is_sound: bool = False
    """Whether a resume loses nothing, so that `broken` is a false alarm."""
    world: World | None = None
    """Prepares the environment, files and global flags before each attempt."""
    acts_on: str = "loss"
    """The value that the lost state changes: `loss`, or `metric` for the result of `evaluate`."""
    first_step: int = 1
    """Steps after the resume at which the fault acts, if the loss does not show this."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config for the script's `build`."""
    threads: int = 1
    is_alone: bool = False
    """Whether each attempt runs in a new process, after a resume rehearsal."""
    is_refused: bool = False
    """Whether a clear refusal of the recipe is also right."""

    def names_rightly(self, component: str | None, sentence: str) -> bool:
        """Whether a finding with this component and sentence tells a person where the fault is."""
        is_right = component in self.components or (ANY in self.components and component not in NO_NAMES)
        return is_right and (not self.names or any(name in sentence for name in self.names))


_CASES: dict[str, Case] = {}


def case(name: str, axis: Axis, *names: str, **fields: Any) -> Callable[[Build], Build]:
    """Declare a recipe function as a case. A module that is loaded again declares the same cases."""

    def declared(build: Build) -> Build:
        recipe = f"{build.__module__}:{build.__name__}"
        _CASES[name] = Case(name, axis, recipe, names, **fields)
        return build

    return declared


def cases(*axes: Axis) -> tuple[Case, ...]:
    """Every case of these axes. Without axes, every case."""
    for module in (*(f"{_SCRIPTS}.{name}" for name in _MODULES), _CARRIED):
        importlib.import_module(module)
    found: Mapping[str, Case] = _CASES
    return tuple(each for each in found.values() if not axes or each.axis in axes)


def case_of(name: str) -> Case:
    """The case with this name."""
    return next(each for each in cases() if each.name == name)
