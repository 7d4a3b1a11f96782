"""Compares the setup in a checkpoint with the setup in the process that resumes from the checkpoint.

The setup describes a recipe or a program without its state: modules, settings, code, data, and the next batches. The
module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from segue.continuity.process_values import ANY_ORDER, Change, belongs_to_process
from segue.records import Finding

MODEL = "setup.model"
"""The class and settings of each module, and the type and shape of each tensor."""
HYPERPARAMETERS = "setup.hyperparameters"
"""The plain values of all objects of the recipe, as `build` created them."""
CODE = "setup.code"
"""Hashes of the bytecode of the user's functions and classes.

For a program, the component contains hashes of the program's files.
"""
DATA = "setup.data"
"""Hashes of the arrays and long lists of the data set. The hash of a large array covers only a sample."""
BINDING = "setup.binding"
"""The names of the parameters that the optimizer updates."""
NEXT_BATCHES = "data.next"
"""The sample ids of the next four batches."""
MACHINE = "setup.machine"
"""The part of the setup with the properties of the process and its machine.

The properties help to recognize values that depend on the process or the machine.
"""
CONFIG = "setup.config"
"""The values that the run spec passes to the recipe or the program.

A resume with changed values happens only after a person has accepted the change with `--accept-drift`.
"""
RANGE = "setup.range"
"""The range over which a program loops.

segue compares the range at the start of the loop, and refuses a different range.
"""
RESTORED = "setup.restored"
"""Paths of registered values among the settings. Registered values are state, because a resume restores them."""
UNTRACKED = "loose"
"""The part of the setup about untracked state, which may explain a replay that differs."""
VALUES = "values"
"""The name of the entry with the marks of all untracked values, by path."""
SURROUNDINGS = "setup.surroundings"
"""The part of the setup about inputs that code reads at run time.

Inputs at run time are environment variables, files, and global settings of libraries.
"""

GLOBALS = "globals of "
"""Prefix of the names of global values that a function reads. A global value may belong to the machine."""
CHANNEL = "setup"
"""The channel name that findings about the setup use."""

CHANGEABLE = (MODEL, HYPERPARAMETERS, CODE, DATA, BINDING)
"""The parts of the setup that a person may change on purpose during a run, and then accepts by name."""
COMPARED = (*CHANGEABLE, NEXT_BATCHES)
NOT_STATE = frozenset((*COMPARED, CONFIG, RANGE, RESTORED, UNTRACKED))
"""Components that a resume compares but does not restore.

The check of restored digests therefore ignores components that are not restored.
"""

PACKAGES = "packages"
KERNELS = "kernels"
"""The name that represents changed package versions in the changes of the environment."""
_OF_VERSIONS = ("torch", "python", PACKAGES)
_MOST_SHOWN = 3
_ABSENT = "absent"


@dataclass(frozen=True)
class SetupChanges:
    """The differences between the live setup and the setup in the checkpoint."""

    findings: tuple[Finding, ...] = ()
    """Findings about changes that no person has accepted."""
    accepted: tuple[Finding, ...] = ()
    """Findings about changes that a person made on purpose.

    A deliberate change is in a new config or is named in the run spec.
    """
    noted: tuple[Finding, ...] = ()
    """Findings about differences that may come from the process or the machine.

    The findings in `noted` only serve to explain rows that differ.
    """


def setup_changes(
    committed: Mapping[str, Any],
    live: Mapping[str, Any],
    *,
    environment_changes: Collection[str],
    accept: Collection[str] = (),
    process_values: Collection[str] = (),
) -> SetupChanges:
    """Compare two setups, component by component.

    `process_values` contains the component and the path of each value that is known to differ in each process.

    If the checkpoint has no setup, there are no findings. The versions of torch, Python and imported packages determine
    which entries exist. If one of these versions has changed, the function compares only entries that both sides have.
    If the version of Python has changed, the function does not compare code, because the bytecode differs.
    """
    other_versions = not set(_OF_VERSIONS).isdisjoint(environment_changes)
    other_config = CONFIG in committed and committed[CONFIG] != live.get(CONFIG)
    found: dict[str, list[Finding]] = {"findings": [], "accepted": [], "noted": []}
    # Values that training changes are state, so their initial values are not settings. The replay shows whether the
    # values have an effect.
    states = {*committed.get(UNTRACKED, {}).get(VALUES, {}), *live.get(RESTORED, {}).get("paths", ())}
    committed, live = _with_parts(committed), _with_parts(live)
    for component in (*COMPARED, SURROUNDINGS):
        if component not in committed or component not in live:
            continue
        if component == CODE and "python" in environment_changes:
            continue
        changes = list(_changes(committed[component], live[component], both_only=other_versions))
        if component == CODE:  # Which values a function reads is part of its code; older ones have a single entry.
            changes = [
                each for each in changes if not (each.path.startswith(GLOBALS) and _ABSENT in (each.before, each.now))
            ]
        if component == SURROUNDINGS:  # A file that only this process has read so far is not a change.
            changes = [each for each in changes if each.before is not _ABSENT or not each.path.startswith("file ")]
        renamed = _renamed(committed[component], live[component])
        changes = [each for each in changes if not each.path.endswith(ANY_ORDER) and not renamed.search(each.path)]
        machines = (committed.get(MACHINE, {}), live.get(MACHINE, {}))
        own = belongs_to_process(
            component,
            changes,
            known=process_values,
            machines=machines,
            permuted=_permuted(committed[component], live[component]),
            has_names=component == HYPERPARAMETERS,
        )
        own |= {each.path for each in changes if _is_below(each.path, states)}
        for noted in (False, True):
            these = [each for each in changes if (each.path in own or _is_only_noted(component, each.path)) is noted]
            if these:
                sentence = _sentence(component, [change.text for change in these])
                finding = Finding(component=component, channel=CHANNEL, sentence=sentence)
                is_meant = other_config or component in accept
                if component == NEXT_BATCHES:  # The next batches follow from the settings and the data.
                    is_meant = any(other.component in (HYPERPARAMETERS, DATA) for other in found["accepted"])
                found["noted" if noted else "accepted" if is_meant else "findings"].append(finding)
    return SetupChanges(**{name: tuple(these) for name, these in found.items()})


def noted_packages(others: Collection[str]) -> tuple[Finding, ...]:
    """Return the finding about packages whose version differs from the version in the checkpoint.

    The finding may explain rows that differ.
    """
    if not others:
        return ()
    sentence = f"the checkpoint was made with other versions of packages: {', '.join(others)}"
    fix = "resume with the versions of the checkpoint, or start another run with the new versions"
    return (Finding(component=PACKAGES, channel=CHANNEL, sentence=sentence, fix=fix),)


def noted_kernels() -> tuple[Finding, ...]:
    """Return the finding that torch.compile timed its kernels again. The finding may explain rows that differ."""
    sentence = "torch.compile timed and chose its kernels again: its cache folder has changed since the checkpoint"
    fix = "share the folder of TORCHINDUCTOR_CACHE_DIR between machines, or turn off autotuning in torch.compile"
    return (Finding(component=KERNELS, channel=CHANNEL, sentence=sentence, fix=fix),)


def _is_below(path: str, places: Collection[str]) -> bool:
    """Whether a path is in `places`, or is below a path in `places`."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in places for count in range(1, len(parts) + 1))


def _with_parts(setup: Mapping[str, Any]) -> Mapping[str, Any]:
    recorded = setup.get(UNTRACKED, {})
    return {**setup, **{name: recorded[name] for name in (SURROUNDINGS, MACHINE) if name in recorded}}


def _renamed(before: Any, now: Any) -> re.Pattern[str]:
    """Return a pattern of paths that an older version of segue wrote in another form.

    Paths that match the pattern cannot be compared.
    """
    if not isinstance(before, dict) or not isinstance(now, dict):
        return _NO_PATH
    is_numbered = any(_NUMBERED_DEFAULT.search(path) and path not in now for path in before)
    return _DEFAULT if is_numbered else _NO_PATH


_DEFAULT, _NUMBERED_DEFAULT, _NO_PATH = (re.compile(text) for text in (r"\.defaults\.", r"\.defaults\.\d", r"(?!)"))
"""Pattern of paths with the names of default arguments.

Older checkpoints have paths with the numbers of default arguments instead.
"""


def _permuted(before: Any, now: Any) -> list[str]:
    """Return the paths of long collections with the same items in another order.

    Each long collection has two hashes: with and without regard to the order.
    """
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    found = (path.removesuffix(ANY_ORDER) for path in before if path.endswith(ANY_ORDER))
    return [path for path in found if before[f"{path}{ANY_ORDER}"] == now.get(f"{path}{ANY_ORDER}")]


def _is_only_noted(component: str, path: str) -> bool:
    """Whether a difference at this path is only noted, e.g. in objects that handle samples or that run after steps."""
    if component == CODE:
        return path.startswith((*_OF_HANDLERS, GLOBALS))
    return component == SURROUNDINGS or (component == HYPERPARAMETERS and path.startswith(_OF_HANDLERS))


_OF_HANDLERS = ("data.dataset.", "data.collate_fn.", "data.worker_init_fn.", "after_step.")


def differences(before: Any, now: Any, *, both_only: bool = False) -> list[str]:
    """Return the differences between two trees of plain data, each with its path and both values."""
    return [change.text for change in _changes(before, now, both_only=both_only)]


def differing_paths(committed: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the component and path of each value that differs between two processes with the same recipe."""
    names = (name for name in (MODEL, HYPERPARAMETERS, CODE, DATA) if name in committed and name in live)
    return tuple(f"{name} {each.path}" for name in names for each in _changes(committed[name], live[name]))


def _changes(before: Any, now: Any, *, both_only: bool = False, path: str = "") -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if both_only and (key not in before or key not in now):
                continue
            below = f"{path}.{key}" if path else key
            yield from _changes(before.get(key, _ABSENT), now.get(key, _ABSENT), both_only=both_only, path=below)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _changes(one, other, both_only=both_only, path=f"{path}.{number}" if path else str(number))
    elif type(before) is not type(now) or before != now:
        yield Change(path, before, now, f"{path or 'its value'} was {_short(before)}, now {_short(now)}")


_MEANINGS = {
    MODEL: "the model's modules or tensors changed",
    HYPERPARAMETERS: "a setting changed",
    CODE: "the code changed",
    DATA: "the content of the data set changed",
    BINDING: "the optimizer has other tensors than before",
    NEXT_BATCHES: "the next batches have other samples",
    SURROUNDINGS: "an input that the code reads at run time changed",
}


def _sentence(component: str, changes: list[str]) -> str:
    shown = [_in_words(change) for change in changes[:_MOST_SHOWN]]
    more = f" and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else ""
    return f"{_MEANINGS[component]}: {'; '.join(shown)}{more}"


def _in_words(change: str) -> str:
    """Describe a change in words.

    If the values are hashes, the text says only "changed", "new" or "gone", because hashes tell a person nothing.
    """
    return _HASHES.sub(lambda found: f" is {_NEWS.get((found[1][:1], found[2][:1]), 'changed')}", change)


_HASHES = re.compile(r" was ('[0-9a-f,]{16,}'|absent), now ('[0-9a-f,]{16,}'|absent)$")
_NEWS = {("a", "'"): "new", ("'", "a"): "gone"}


def _short(value: Any) -> str:
    """Return the value in at most 80 characters.

    The function cuts out the middle of a long value, because paths of code differ at their ends.
    """
    text = _ABSENT if value is _ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:38]}...{text[-39:]}"
