"""Replaces the paths of files in a Lightning checkpoint by names, because other attempts have other folders.

`ModelCheckpoint` keeps the paths of its files, for example below `lightning_logs/version_0`, and the next attempt works
in the folder `version_1`. If checkpoints contained paths, equal runs would never have equal checkpoints. Also, if a
`ModelCheckpoint` finds another folder in its state, it forgets all of its files except one. Therefore the committed
checkpoint contains names that are the same in each attempt. A file on this machine records the path of each name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

_HERE = "segue:"
"""Prefix of each name that replaces a path. The name of the file follows the prefix."""
_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
_COUNTED = re.compile(r"-v\d+(?=\.[^.]*$)")
"""Pattern of the suffix that Lightning adds to a file name that already exists, for example from an earlier attempt."""
_END_BYTES, _MOST_NOTED = 64 * 2**10, 4


def with_names(checkpoint: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Replace the paths of `ModelCheckpoint` in a checkpoint by names. Return the checkpoint, and the paths by name."""
    paths: dict[str, str] = {}
    states = dict(checkpoint.get("callbacks", {}))
    for key, state in _with_files(states):
        names = _named(state, start=len(paths))
        paths |= {name: path for path, name in names.items()}
        best = {names[path]: score for path, score in state["best_k_models"].items()}
        own = {name: names.get(state[name], "") for name in _PATHS if name in state}
        states[key] = {**state, **own, "dirpath": _HERE, "best_k_models": best}
    return ({**checkpoint, "callbacks": states} if states else checkpoint), paths


def put_paths(checkpoint: dict[str, Any], paths: dict[str, str], folders: dict[str, str]) -> dict[str, str]:
    """Replace the names in a checkpoint by paths, and return the paths by name.

    `folders` contains the folder of each callback of this attempt, by the key of the callback. If a file is not in
    `paths`, its path is in the folder of its callback.
    """
    found: dict[str, str] = {}
    for key, state in _with_files(checkpoint.get("callbacks", {})):
        if state["dirpath"] != _HERE:
            continue  # This is a file of the user, or the path of an older version without names.
        folder = folders.get(key, "")

        def path_of(name: str, folder: str = folder) -> str:
            path = paths.get(name) or os.path.join(folder, name.rpartition("/")[2])  # noqa: PTH118 - as Lightning does
            return found.setdefault(name, path)

        own = {name: path_of(state[name]) for name in _PATHS if state.get(name, "").startswith(_HERE)}
        best = {path_of(name): score for name, score in state["best_k_models"].items()}
        state.update(own, best_k_models=best, dirpath=folder)
    return found


def note(beside: Path, checkpoint: Path, paths: dict[str, str]) -> None:
    """Record the paths of this checkpoint's files in the file `beside`, next to the committed folder."""
    mark = _mark(checkpoint)
    noted = {each: known for each, known in _noted(beside).items() if each != mark}
    kept = dict(list(noted.items())[-_MOST_NOTED + 1 :]) | {mark: paths}
    staged = beside.with_name(f"{beside.name}.new")
    staged.write_text(json.dumps(kept, indent=1))
    staged.replace(beside)


def noted(beside: Path, checkpoint: Path) -> dict[str, str]:
    """Return the recorded paths of this checkpoint's files that still exist.

    On another machine, the result is empty.
    """
    paths = _noted(beside).get(_mark(checkpoint), {})
    return {name: path for name, path in paths.items() if Path(path).exists()}


def _noted(beside: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(beside.read_text())
    except (OSError, ValueError):
        return {}  # Without the records of this machine, only the names are known.
    return found if isinstance(found, dict) else {}


def _mark(checkpoint: Path) -> str:
    """Return the file's size and a hash of the file's end.

    The end of a zip file contains the checksums of the file's contents.
    """
    size = checkpoint.stat().st_size
    with checkpoint.open("rb") as file:
        file.seek(max(size - _END_BYTES, 0))
        return f"{size}:{xxhash.xxh3_64_hexdigest(file.read())}"


def _with_files(states: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the states of callbacks that keep files, by the keys of the callbacks."""
    for key, state in list(states.items()):
        if isinstance(state, dict) and "dirpath" in state and isinstance(state.get("best_k_models"), dict):
            yield key, state


def _named(state: dict[str, Any], *, start: int) -> dict[str, str]:
    """Return a name for each path.

    The name consists of the file's number, and the file name without Lightning's suffix.
    """
    found = [*state["best_k_models"], *(state[name] for name in _PATHS if state.get(name))]
    return {
        path: f"{_HERE}{start + place}/{_COUNTED.sub('', os.path.basename(path))}"  # noqa: PTH119 - also of URLs
        for place, path in enumerate(dict.fromkeys(found))
    }
