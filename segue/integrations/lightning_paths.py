"""Replaces the paths of files in a Lightning checkpoint by names, because other attempts have other folders.

`ModelCheckpoint` keeps the paths of its files, for example below `lightning_logs/version_0`. The next attempt works in
`version_1`, so equal runs would never have equal checkpoints. Also, a `ModelCheckpoint` that finds another folder in
its state drops all of its files except one. So the committed checkpoint has names that are the same in each attempt,
and the places of the files are recorded in a file on this machine.
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
"""Prefix of a name in place of a path; the name of the file follows."""
_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
_COUNTED = re.compile(r"-v\d+(?=\.[^.]*$)")
"""The suffix that Lightning adds to a name if a file, for example of an earlier attempt, already has this name."""
_END_BYTES, _MOST_NOTED = 64 * 2**10, 4


def with_names(checkpoint: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The checkpoint with names in place of the paths of `ModelCheckpoint`, and the paths by these names."""
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
    """Put paths back in place of names; `folders` has the folder of each callback of this attempt, by its key.

    A file that is not in `paths` is expected in the folder of its callback. Returns the paths by their names.
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
    """Record the places of this checkpoint's files, in a file `beside` the committed folder."""
    mark = _mark(checkpoint)
    noted = {each: known for each, known in _noted(beside).items() if each != mark}
    kept = dict(list(noted.items())[-_MOST_NOTED + 1 :]) | {mark: paths}
    staged = beside.with_name(f"{beside.name}.new")
    staged.write_text(json.dumps(kept, indent=1))
    staged.replace(beside)


def noted(beside: Path, checkpoint: Path) -> dict[str, str]:
    """The recorded places of this checkpoint's files that still exist; empty on another machine."""
    paths = _noted(beside).get(_mark(checkpoint), {})
    return {name: path for name, path in paths.items() if Path(path).exists()}


def _noted(beside: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(beside.read_text())
    except (OSError, ValueError):
        return {}  # Without the records of this machine, only the names are known.
    return found if isinstance(found, dict) else {}


def _mark(checkpoint: Path) -> str:
    """The file's size and a hash of its end; the end of a zip file has the checksums of its contents."""
    size = checkpoint.stat().st_size
    with checkpoint.open("rb") as file:
        file.seek(max(size - _END_BYTES, 0))
        return f"{size}:{xxhash.xxh3_64_hexdigest(file.read())}"


def _with_files(states: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The states of callbacks that keep files, by their keys."""
    for key, state in list(states.items()):
        if isinstance(state, dict) and "dirpath" in state and isinstance(state.get("best_k_models"), dict):
            yield key, state


def _named(state: dict[str, Any], *, start: int) -> dict[str, str]:
    """A name for each path: its place among the files, and its file name without Lightning's suffix."""
    found = [*state["best_k_models"], *(state[name] for name in _PATHS if state.get(name))]
    return {
        path: f"{_HERE}{start + place}/{_COUNTED.sub('', os.path.basename(path))}"  # noqa: PTH119 - also of URLs
        for place, path in enumerate(dict.fromkeys(found))
    }
