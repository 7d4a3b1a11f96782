"""Writes and reads folders of torch.distributed.checkpoint (DCP).

segue writes all state to such a folder, and reads a model's weights from it. The format is described at
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html. A folder contains a pickled index, `.metadata`, and
files with the bytes of tensors. The unpickler of the index permits only the classes of an index, and tensors are read
with `weights_only=True`. Therefore segue runs no code from a folder.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from segue.errors import WeightsFileError
from segue.records import WeightsFile

_INDEX = ".metadata"
_MODEL = "model."
_OF_INDEX = {
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}
_SAVE_AGAIN = "save it again with torch.distributed.checkpoint.save, or save the model's state_dict() alone."


def write_dcp(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the components from one process into an existing folder.

    Raises:
        OSError: a file cannot be written.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            save(dict(state), checkpoint_id=folder, no_dist=True)
        except CheckpointException as error:  # Raise the original error of this process, not the wrapper with ranks.
            raise next(raised for raised, _ in error.failures.values()) from None


def optimizer_by_names(state: Mapping[str, Any], groups: list[list[str]]) -> dict[str, Any]:
    """Return the state of an optimizer with the parameter names of `torch.distributed.checkpoint.state_dict`.

    `groups` contains the names in each param_group. If these names do not fit, return the state unchanged.
    """
    numbers = [group["params"] for group in state["param_groups"]]
    if [len(group) for group in numbers] != [len(group) for group in groups]:
        return dict(state)
    names = dict(zip(chain.from_iterable(numbers), chain.from_iterable(groups), strict=True))
    if len(set(names.values())) < len(names):
        return dict(state)  # Parameters of an untracked module have no names.
    return {
        "state": {names[number]: slots for number, slots in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }


def read_dcp(folder: Path) -> tuple[WeightsFile, dict[str, Any]]:
    """Return a record of the folder, and the model's tensors in the folder.

    The names of the model's tensors begin with `model.`. If no name begins with `model.`, all tensors are the model's.

    Raises:
        WeightsFileError: the folder cannot be read or is damaged, or the index contains a class that no index needs.
    """
    try:
        index = _index(folder)
        described = index.state_dict_metadata.items()
        found = {name: each for name, each in described if isinstance(each, TensorStorageMetadata)}
        of_model = {name: each for name, each in found.items() if name.startswith(_MODEL)} or found
        state = {name: _tensor(folder, index, name, each) for name, each in of_model.items()}
        return _source(folder), state
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise WeightsFileError(file=str(folder), why=why, fix="check the path and your access.") from None
    except (KeyError, ValueError, RuntimeError, AttributeError, TypeError, EOFError, pickle.UnpicklingError) as error:
        why = f"is not a complete folder of torch.distributed.checkpoint ({error or type(error).__name__})"
        raise WeightsFileError(file=str(folder), why=why, fix=_SAVE_AGAIN) from None


class _IndexUnpickler(pickle.Unpickler):
    """An unpickler that permits the classes of an index, and refuses every other class."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _OF_INDEX.get(module, ()):
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which no index needs")
        return super().find_class(module, name)


def _index(folder: Path) -> Metadata:
    with (folder / _INDEX).open("rb") as file:
        index = _IndexUnpickler(file).load()
    if not isinstance(index, Metadata):
        raise TypeError(f"its index is a {type(index).__name__}")
    return index


def _tensor(folder: Path, index: Metadata, name: str, described: TensorStorageMetadata) -> torch.Tensor:
    whole = torch.empty(described.size, dtype=described.properties.dtype)
    filled = 0
    for chunk in described.chunks:
        part = _part(folder, index, MetadataIndex(name, chunk.offsets))
        if part.shape != chunk.sizes or part.dtype != whole.dtype:
            raise ValueError(f"{name} has another shape or type in its file")
        place = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
        whole[place] = part
        filled += prod(chunk.sizes)
    if filled != whole.numel():
        raise ValueError(f"parts of {name} are missing")
    return whole


def _part(folder: Path, index: Metadata, key: MetadataIndex) -> torch.Tensor:
    stored = index.storage_data[key]
    if Path(stored.relative_path).name != stored.relative_path:
        raise ValueError(f"{stored.relative_path} is not in the folder")
    if getattr(stored, "transform_descriptors", None):
        raise ValueError(f"{key.fqn} is stored with {', '.join(stored.transform_descriptors)}")
    with (folder / stored.relative_path).open("rb") as file:
        file.seek(stored.offset)
        data = file.read(stored.length)
    if data[:2] == b"PK":  # The data is a zip file of torch.save.
        part = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    else:
        (part,) = safetensors.torch.load(data).values()
    if not isinstance(part, torch.Tensor):
        raise TypeError(f"{key.fqn} is not a tensor in its file")
    return part


def _source(folder: Path) -> WeightsFile:
    digest, size = hashlib.sha256(), 0
    for path in _files(folder):
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    return WeightsFile(name=folder.name, size_bytes=size, sha256=digest.hexdigest())


def _files(folder: Path) -> Iterator[Path]:
    yield folder / _INDEX
    yield from sorted(folder.glob("*.distcp"))
