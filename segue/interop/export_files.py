"""State and curve as files that torch, safetensors, json and parquet read by themselves."""

from __future__ import annotations

import io
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
import torch

from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import Json, decode_tree, encode_tree
from segue.continuity.recipe_diff import NOT_STATE
from segue.curves.frame import steps_of_lineage
from segue.curves.schema import SCHEMA
from segue.errors import MalformedCheckpointError, MissingObjectError
from segue.interop.export_readme import readme
from segue.runlog import keys
from segue.runlog.history import Checkpoint, History
from segue.runlog.log import RunLog
from segue.trainer.state import PROGRESS

log = logging.getLogger(__name__)

_MODEL = "model"
_RESERVED = ("config", "data_position", "loss_curve", "readme", "train_state")
"""Stems of the files beside the state; no component may take them, not even on a disk that knows no upper case."""


def write_state(folder: Path, snapshot: Snapshot, *, as_torch: bool, say: Callable[[str], None]) -> None:
    """Write each component under its own name, and a README.md that says what is what.

    Raises:
        MalformedCheckpointError: the model's state is not one.
        OSError: a file cannot be written.
    """
    # The position is data_position.json's; what is only compared loads into nothing.
    stems = file_stems(name for name in snapshot.skeletons if name != PROGRESS and name not in NOT_STATE)
    files = {}
    for name, stem in stems.items():
        say(f"writing {name}")
        tree = decode_tree(snapshot.skeletons[name], snapshot.tensors)
        if name == _MODEL and not _is_model(tree):
            raise MalformedCheckpointError(key="manifest", why="the model's state has no 'state' and 'metadata'")
        if as_torch:
            files[name] = _write_torch(folder, stem, _state_dict(tree) if name == _MODEL else loadable(tree))
            continue
        tensors: dict[str, torch.Tensor] = {}
        skeleton = _encode_model(tree, tensors) if name == _MODEL else encode_tree(tree, path=name, tensors=tensors)
        files[name] = _write_safetensors(folder, stem, skeleton, tensors)
    (folder / "README.md").write_text(readme(files, as_torch=as_torch), encoding="utf-8")


def write_curve(path: Path, runlog: RunLog, history: History, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Write the loss curve of the steps that led to a checkpoint, each once; gives the attempts that lack rows in it.

    What `segue.curve` gives, cut at the checkpoint. For one that the run did not go on from it is the curve that led
    there, which is not a part of the run's.
    """
    until = tuple(c for c in history.checkpoints if c.ref.slot < checkpoint.ref.slot)
    end = replace(checkpoint, quarantined=None, is_pruned=False)
    lineage = steps_of_lineage(replace(history, checkpoints=(*until, end)))
    curve = SCHEMA.empty_table()
    for key in _curve_files(runlog, lineage):
        try:
            table = pq.read_table(io.BytesIO(runlog.store.get(key)))
            for attempt_id, (after, to) in lineage.items():
                step = pc.field("step")
                rows = table.filter((pc.field("attempt_id") == attempt_id) & (step > after) & (step <= to))
                curve = pa.concat_tables([curve, rows], promote_options="default")
        except (MissingObjectError, pa.ArrowException, OSError) as error:
            # The curve is no part of the state: it must not keep anyone from their weights.
            log.warning("loss curve file left out key=%s reason=%s", key, error)
    pq.write_table(curve.sort_by("step"), path)
    found = Counter(curve["attempt_id"].to_pylist())
    return tuple(attempt_id for attempt_id, (after, to) in reversed(lineage.items()) if found[attempt_id] < to - after)


def _curve_files(runlog: RunLog, attempt_ids: Iterable[str]) -> list[str]:
    """Files that may hold rows of these attempts; one of seg000-a1-e12 is also taken for seg000-a1-e1."""
    prefix = keys.metrics_prefix(runlog.run_id)
    starts = tuple(f"{prefix}{attempt_id}" for attempt_id in attempt_ids)
    found = (item.key for item in runlog.store.list_objects(prefix))
    return [key for key in found if key.endswith(".parquet") and key.startswith(starts)]


def file_stems(components: Iterable[str]) -> dict[str, str]:
    """A file name, less its ending, for each component: its own, with %xx for what a file name cannot hold."""
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
    """The tree in types that `torch.load(weights_only=True)` takes: arrays as tensors, NumPy's scalars as numbers."""
    if isinstance(tree, torch.Tensor):
        return _own(tree)
    if isinstance(tree, np.ndarray):
        return _own(torch.from_numpy(tree))
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, bytes):
        return tree or bytearray()  # Empty bytes are pickled by a name that weights_only refuses.
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        return {key: loadable(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple, set)):
        return type(tree)(loadable(item) for item in tree)
    return tree


def _is_model(tree: Any) -> bool:
    return isinstance(tree, dict) and all(isinstance(tree.get(name), dict) for name in ("state", "metadata"))


def _state_dict(tree: Any) -> OrderedDict[str, Any]:
    state = OrderedDict((name, loadable(value)) for name, value in tree["state"].items())
    state._metadata = OrderedDict(loadable(tree["metadata"]))  # type: ignore[attr-defined]
    return state


def _encode_model(tree: Any, tensors: dict[str, torch.Tensor]) -> Json:
    """The model's skeleton, in which tensors have the names that the model gives them."""
    state = tree["state"]
    tensors |= {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    encoded = [
        [name, {"$tensor": name} if isinstance(value, torch.Tensor) else encode_tree(value, path=name, tensors=tensors)]
        for name, value in state.items()
    ]
    metadata = encode_tree(tree["metadata"], path="metadata", tensors=tensors)
    return {"state": {"$pairs": encoded}, "metadata": metadata}


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own: torch.save would write all of what it is a view of."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _write_torch(folder: Path, stem: str, tree: Any) -> tuple[str, ...]:
    name = f"{stem}.pt"
    try:
        with (folder / name).open("xb") as file:
            torch.save(tree, file)
    except RuntimeError as error:
        # On a full disk torch raises its own complaint over the one that says so.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    return (name,)


def _write_safetensors(folder: Path, stem: str, skeleton: Json, tensors: dict[str, torch.Tensor]) -> tuple[str, ...]:
    names = (f"{stem}.json", f"{stem}.safetensors")
    with (folder / names[0]).open("x", encoding="utf-8") as file:
        json.dump(skeleton, file)
    if not tensors:
        return names[:1]
    written: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        # Names that share memory (tied weights) are refused by safetensors; each gets a copy.
        place = tensor.untyped_storage().data_ptr()
        written[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    try:
        safetensors.torch.save_file(written, folder / names[1], metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from None
    return names
