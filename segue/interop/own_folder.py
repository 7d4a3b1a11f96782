"""Exports a framework's own checkpoint folder: its original files, and a copy of the files of its best model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from segue.checkpoints.format.names import FOLDER, leads_out
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import decode_tree
from segue.errors import MalformedCheckpointError

BEST = "best"


class OwnFolder(NamedTuple):
    """The bytes of the folder's files by path. For each file of the best model, its path in the folder."""

    files: Mapping[str, torch.Tensor]
    best: Mapping[str, str]


def folder_of(snapshot: Snapshot) -> OwnFolder | None:
    """Return the folder in a checkpoint. Return None for a recipe, or for a program that tracks its objects.

    Raises:
        MalformedCheckpointError: a path leads out of the folder, or a file of the best model is not in the folder.
    """
    skeleton = snapshot.skeletons.get(FOLDER)
    tree = decode_tree(skeleton, snapshot.tensors) if isinstance(skeleton, dict) else None
    if not isinstance(tree, dict):
        return None
    files, best = tree.get("files"), tree.get("best", {})
    if not isinstance(files, dict) or not all(map(_is_content, files.values())):
        return None  # This is another object that a program tracks under this name.
    for name in (*files, *best):
        if leads_out(name):
            raise MalformedCheckpointError(key=FOLDER, why=f"the path {name!r} leads out of the folder")
    lost = next((name for name in best.values() if name not in files), None)
    if lost is not None:
        raise MalformedCheckpointError(key=FOLDER, why=f"{lost!r} of its best model is not in the folder")
    return OwnFolder(files, best)


def write_folder(folder: Path, own: OwnFolder) -> None:
    """Write the files of the folder below `folder/`, and the files of the best model below `best/`."""
    parts = {FOLDER: own.files, BEST: {name: own.files[committed] for name, committed in own.best.items()}}
    for part, files in parts.items():
        for name, content in files.items():
            path = folder / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content.numpy().tofile(path)


def _is_content(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.uint8 and value.dim() == 1
