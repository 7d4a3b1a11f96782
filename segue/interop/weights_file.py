"""Reads weights from a file, without running code from the file, and loads the weights into a model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parameter import is_lazy
from torch.serialization import get_unsafe_globals_in_checkpoint

from segue.errors import WeightsFileError, WeightsMismatchError
from segue.records import WeightsFile

_WRAPPER_PREFIXES = ("module.", "model.", "_orig_mod.")
"""Prefixes that DistributedDataParallel, an outer module and torch.compile add to every name in a state dict."""

_EXTRA_STATE = "_extra_state"
_SAVE_AGAIN = "save the model's state_dict() alone, by torch.save or safetensors."


@dataclass(frozen=True)
class Weights:
    """The content of a file with weights, by the names in the file."""

    file: WeightsFile
    state: dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """The result of loading weights into a model."""

    prefix: str
    """The prefix that the load removed from every name."""
    kept_as_built: tuple[str, ...]
    """The names of the model's weights that the file lacks."""
    converted: tuple[str, ...]
    """The names of tensors whose element type in the model differs from the element type in the file."""


def read_weights(path: Path) -> Weights:
    """Read the state dict in a file of `torch.save`, in a file with the suffix `.safetensors`, or in a DCP folder.

    The function runs no code from the file.

    Raises:
        WeightsFileError: the file cannot be read, contains code, is not a state dict, or changed during the read.
    """
    if path.is_dir():
        from segue.interop.dcp_folder import read_dcp  # This import takes a second.

        source, state = read_dcp(path)
        return Weights(source, _require_state_dict(state, path))
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            loaded = _safetensors(file, path) if path.suffix == ".safetensors" else _torch(file, path)
            after = os.fstat(file.fileno())
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise WeightsFileError(file=str(path), why=why, fix="check the path and your access.") from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        # The digest would not be the digest of the weights.
        raise WeightsFileError(file=str(path), why="changed while it was read", fix="wait until it is complete.")
    source = WeightsFile(name=path.name, size_bytes=before.st_size, sha256=digest)
    return Weights(source, _require_state_dict(loaded, path))


def fit_into(model: nn.Module, weights: Weights, *, path: Path, partial: bool) -> Fit:
    """Load weights into a model. If `partial` is true, the file may lack some of the model's weights.

    Raises:
        WeightsMismatchError: some names or shapes differ from the model's. The error lists these names and shapes.
        WeightsFileError: the model's own code refuses the weights.
    """
    own, state = model.state_dict(), weights.state
    prefix = _strip_prefix(state, wanted=own.keys())
    both = [name for name in own if _is_tensor_in(name, own, state)]
    compared = ((name, _disagreement(name, given=state[name], own=own[name])) for name in both)
    misshapen = {name: problem for name, problem in compared if problem is not None}
    converted = tuple(name for name in both if state[name].dtype != own[name].dtype)
    for name in misshapen:
        del state[name]
    try:
        # The load is not strict, so that one error names all differences. The model itself loads the weights, because
        # its modules may know older names.
        outcome = model.load_state_dict(state, strict=False)
    except Exception as error:
        why = f"is refused by the model ({type(error).__name__}: {error})"
        raise WeightsFileError(file=str(path), why=why, fix="give weights of this model.") from error
    filled = {_place(own[name]) for name in both}
    missing = tuple(
        name
        for name in getattr(outcome, "missing_keys", ())
        if name not in misshapen and _place(own.get(name)) not in filled  # The file may have tied weights only once.
    )
    unexpected = tuple(getattr(outcome, "unexpected_keys", ()))
    if misshapen or unexpected or (missing and not partial):
        raise WeightsMismatchError(
            file=str(path), missing=missing, unexpected=unexpected, misshapen=tuple(misshapen.values())
        )
    return Fit(prefix=prefix, kept_as_built=missing, converted=converted)


def _torch(file: IO[bytes], path: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # torch's own message advises weights_only=False, which would run code in the file.
        names = _code_in(path)
        why = (
            f"names Python objects, whose code would have to run to read the file: {', '.join(names)}. None was run"
            if names
            else f"holds more than tensors and plain data, is damaged, or is not from torch ({type(error).__name__})"
        )
        raise WeightsFileError(file=str(path), why=why, fix=_SAVE_AGAIN) from None


def _code_in(path: Path) -> list[str]:
    try:
        return sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:
        return []  # torch cannot inspect this file.


def _safetensors(file: IO[bytes], path: Path) -> Any:
    try:
        return safetensors.torch.load(file.read())
    except (OSError, MemoryError):
        raise
    except Exception as error:
        fix = "save or copy it again."
        raise WeightsFileError(file=str(path), why=f"is not a whole safetensors file ({error})", fix=fix) from None


def _require_state_dict(loaded: Any, path: Path) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        why = f"holds a {type(loaded).__name__}, not a state dict"
        raise WeightsFileError(file=str(path), why=why, fix=_SAVE_AGAIN)
    odd = [name for name, value in loaded.items() if not _belongs(name, value)]
    if odd:
        inner = [name for name in odd if isinstance(loaded[name], Mapping) and _has_tensor(loaded[name])]
        why = f"is not the state dict of a model: {', '.join(map(repr, odd[:4]))} in it are not tensors"
        fix = f"if {inner[0]!r} in it is the model, save only this entry." if inner else _SAVE_AGAIN
        raise WeightsFileError(file=str(path), why=why, fix=fix)
    if not _has_tensor(loaded):
        raise WeightsFileError(file=str(path), why="holds no tensors", fix=_SAVE_AGAIN)
    return loaded


def _belongs(name: object, value: object) -> bool:
    return isinstance(name, str) and (isinstance(value, torch.Tensor) or name.endswith(_EXTRA_STATE))


def _has_tensor(state: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in state.values())


def _strip_prefix(state: dict[str, Any], *, wanted: Iterable[str]) -> str:
    """Remove the prefixes of wrappers from every name, if more names then match the model's names."""
    known, names = set(wanted), set(state)
    stripped: list[str] = []
    best, hits = 0, len(names & known)
    while prefix := next((p for p in _WRAPPER_PREFIXES if all(name.startswith(p) for name in names)), None):
        names = {name.removeprefix(prefix) for name in names}
        stripped.append(prefix)
        if len(names & known) > hits:
            best, hits = len(stripped), len(names & known)
    for prefix in stripped[:best]:
        consume_prefix_in_state_dict_if_present(state, prefix)
    return "".join(stripped[:best])


def _is_tensor_in(name: str, *states: Mapping[str, Any]) -> bool:
    found = [state.get(name) for state in states]
    return all(isinstance(value, torch.Tensor) and not is_lazy(value) for value in found)


def _disagreement(name: str, *, given: torch.Tensor, own: torch.Tensor) -> str | None:
    if given.shape == own.shape and torch.can_cast(given.dtype, own.dtype):
        return None
    in_file, in_model = (f"{_dtype(tensor)}{list(tensor.shape)}" for tensor in (given, own))
    return f"{name}: {in_file} in the file, {in_model} in the model"


def _place(tensor: object) -> object:
    """Return the address and the layout of a tensor in memory, which are equal for two names of one weight."""
    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
