"""Writes state and loss curve as files that torch, safetensors, json and parquet can read without segue."""

from __future__ import annotations

import json
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
import torch
from pyarrow import csv

from segue.checkpoints.format.collections import is_frame
from segue.checkpoints.format.constants import MOMENTS, is_constant
from segue.checkpoints.format.names import FOLDER, leads_out
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import Json, decode_tree, encode_tree
from segue.continuity.recipe_diff import BINDING, NOT_STATE
from segue.curves.frame import steps_of_lineage, stored_tables
from segue.curves.schema import SCHEMA
from segue.errors import MalformedCheckpointError
from segue.interop.export_readme import EPOCH_NAMES, readme, readme_of_dcp
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.trainer.workloads.state import PROGRESS

_MODEL, _OPTIMIZER = "model", "optimizer"
_RESERVED = ("config", "data_position", "loss_curve", "readme", "train_state")
"""Names, without suffix, of the exported files that do not contain the state of a component.

No component may have one of these names, in any case of letters.
"""
BEST = "best"


def plain_state(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    """Yield the name and the state of each component that a recipe can load, as a tree of plain values.

    The state of the model is the model's `state_dict()`. The position in the data is also a component.

    Raises:
        MalformedCheckpointError: the model's state is not a state dict.
    """
    for name, tree in _trees(snapshot):
        yield name, _state_dict(tree) if name == _MODEL else loadable(tree)


def write_state(
    folder: Path,
    snapshot: Snapshot,
    *,
    file_format: Literal["torch", "safetensors", "dcp", "epoch"],
    progress: Callable[[str], None],
) -> None:
    """Write each component to files with the component's name, and a README.md that explains the files.

    In the format "dcp", one set of files contains all components.

    Raises:
        MalformedCheckpointError: the model's state is not a state dict.
        OSError: a file cannot be written.
    """
    if file_format == "dcp":
        from segue.interop.dcp_folder import write_dcp  # This import takes a second.

        progress("writing the state")
        write_dcp(folder, _dcp_state(snapshot))
        (folder / "README.md").write_text(readme_of_dcp(sorted(_loadable_names(snapshot))), encoding="utf-8")
        return
    as_torch = file_format in ("torch", "epoch")
    # The position is in data_position.json.
    stems = file_stems(name for name in _loadable_names(snapshot) if name != PROGRESS)
    own = folder_of(snapshot)
    files = {}
    for name, state in plain_state(snapshot) if as_torch else _trees(snapshot):
        if name == PROGRESS or (name == FOLDER and own is not None):
            continue
        progress(f"writing {name}")
        write = _write_torch if as_torch else _write_model if name == _MODEL else _write_component
        files[name] = write(folder, name, stems[name], state)
    if own is not None:
        progress("writing the framework's own files")
        write_folder(folder, own)
    folders = [] if own is None else [FOLDER, BEST] if own.best else [FOLDER]
    renamed = EPOCH_NAMES if file_format == "epoch" else {}
    text = readme(files, as_torch=as_torch, folders=folders, renamed=renamed)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _dcp_state(snapshot: Snapshot) -> dict[str, Any]:
    """Return the states of all components by name.

    If the checkpoint contains the names of the parameters, the state of an optimizer uses these names.
    """
    from segue.interop.dcp_folder import optimizer_by_names

    state = dict(plain_state(snapshot))
    optimizers = [name for name in state if name == _OPTIMIZER]
    bound = snapshot.skeletons.get(BINDING)
    for name in optimizers if isinstance(bound, dict) else ():
        groups = decode_tree(bound, snapshot.tensors)["groups"]
        state[name] = optimizer_by_names(state[name], groups)
    return state


def write_curve(path: Path, runlog: RunLog, history: History) -> tuple[str, ...]:
    """Write the loss curve up to the newest checkpoint of `history`, each step once.

    Return the attempts with missing rows. The rows are the rows of `segue.curve` up to the checkpoint. If the run did
    not continue from the checkpoint, the rows may include steps outside the run's curve.
    """
    lineage = steps_of_lineage(history)
    parts = [SCHEMA.empty_table()]
    for table in stored_tables(runlog, of_attempts=lineage):
        for attempt_id, (after, to) in lineage.items():
            step = pc.field("step")
            parts.append(table.filter((pc.field("attempt_id") == attempt_id) & (step > after) & (step <= to)))
    curve = pa.concat_tables(parts, promote_options="default")  # Files may have different metrics.
    write = csv.write_csv if path.suffix == ".csv" else pq.write_table
    write(curve.sort_by("step"), path)
    found = Counter(curve["attempt_id"].to_pylist())
    return tuple(attempt_id for attempt_id, (after, to) in reversed(lineage.items()) if found[attempt_id] < to - after)


def _loadable_names(snapshot: Snapshot) -> list[str]:
    return [name for name in snapshot.skeletons if name not in NOT_STATE]


def _trees(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    for name in _loadable_names(snapshot):
        tree = decode_tree(snapshot.skeletons[name], snapshot.tensors)
        if name == _MODEL and not _is_model(tree):
            raise MalformedCheckpointError(key="manifest", why="the model's state has no 'state' and 'metadata'")
        yield name, tree


def file_stems(components: Iterable[str]) -> dict[str, str]:
    """Return a file name without suffix for each component.

    The file name is the component's name. `%xx` replaces each character that a file name may not contain.
    """
    stems: dict[str, str] = {}
    taken = set(_RESERVED)
    for name in components:
        stem = quote(name, safe=" ")
        while stem.casefold() in taken:
            stem += "~"
        taken.add(stem.casefold())
        stems[name] = stem
    return stems


def loadable(tree: Any) -> Any:
    """Return the tree, converted to types that `torch.load(weights_only=True)` accepts.

    Arrays and complex numbers become tensors, NumPy's scalars become numbers, and tables become dicts of their columns.
    Dates, paths and similar values become text. Any other collection becomes a list or a set.
    """
    if isinstance(tree, torch.Tensor):
        return _own(tree)
    if isinstance(tree, np.ndarray):
        return _own(torch.from_numpy(tree)) if tree.dtype.kind not in MOMENTS else tree.astype(str).tolist()
    if isinstance(tree, np.generic):
        return tree.item() if tree.dtype.kind not in MOMENTS else str(tree)
    if isinstance(tree, bytes):
        return tree or bytearray()  # Pickle writes empty bytes with a name that weights_only refuses.
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        return {key: loadable(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple, set)):
        return type(tree)(loadable(item) for item in tree)
    return _loadable_collection(tree)


def _loadable_collection(tree: Any) -> Any:
    if is_frame(tree):
        return loadable(tree.to_dict("list") if hasattr(tree, "columns") else tree.tolist())
    if isinstance(tree, complex):
        return torch.tensor(tree)
    if is_constant(tree):
        return str(tree)
    if isinstance(tree, (deque, array)):
        return [loadable(item) for item in tree]
    return set(map(loadable, tree)) if isinstance(tree, frozenset) else tree


def _is_model(tree: Any) -> bool:
    return isinstance(tree, dict) and all(isinstance(tree.get(name), dict) for name in ("state", "metadata"))


def _state_dict(tree: Any) -> OrderedDict[str, Any]:
    state = OrderedDict((name, loadable(value)) for name, value in tree["state"].items())
    state._metadata = OrderedDict(loadable(tree["metadata"]))  # type: ignore[attr-defined]
    return state


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in its own memory, because torch.save would write the whole storage of a view."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _write_torch(folder: Path, name: str, stem: str, tree: Any) -> tuple[str, ...]:
    file_name = f"{stem}.pt"
    try:
        with (folder / file_name).open("xb") as file:
            torch.save(tree, file)
    except RuntimeError as error:
        # On a full disk, torch raises its own error, which hides the error with the cause.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    return (file_name,)


def _write_model(folder: Path, name: str, stem: str, tree: Any) -> tuple[str, ...]:
    """Write the files of the model. Each tensor has its name from the model's state dict."""
    state = tree["state"]
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    others = {
        key: encode_tree(value, path=key, tensors=tensors)
        for key, value in state.items()
        if not isinstance(value, torch.Tensor)
    }
    pairs = [[key, others.get(key, {"$tensor": key})] for key in state]
    metadata = encode_tree(tree["metadata"], path="metadata", tensors=tensors)
    return _write_safetensors(folder, stem, {"state": {"$pairs": pairs}, "metadata": metadata}, tensors)


def _write_component(folder: Path, name: str, stem: str, tree: Any) -> tuple[str, ...]:
    tensors: dict[str, torch.Tensor] = {}
    return _write_safetensors(folder, stem, encode_tree(tree, path=name, tensors=tensors), tensors)


def _write_safetensors(folder: Path, stem: str, skeleton: Json, tensors: dict[str, torch.Tensor]) -> tuple[str, ...]:
    names = (f"{stem}.json", f"{stem}.safetensors")
    with (folder / names[0]).open("x", encoding="utf-8") as file:
        json.dump(skeleton, file)
    if not tensors:
        return names[:1]
    written: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors refuses names that share memory (tied weights), so each name gets a copy.
        place = tensor.untyped_storage().data_ptr()
        written[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    try:
        safetensors.torch.save_file(written, folder / names[1], metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from None
    return names


class OwnFolder(NamedTuple):
    """The bytes of the folder's files, by path. For each file of the best model, also its path in the folder."""

    files: Mapping[str, torch.Tensor]
    best: Mapping[str, str]


def folder_of(snapshot: Snapshot) -> OwnFolder | None:
    """Return the folder in a checkpoint. If the checkpoint has no folder, because a recipe or a program with tracked
    objects wrote it, return None.

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
