"""Manages the files of a model's versions in the store: weights and programs. Retention never prunes these files."""

from __future__ import annotations

import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segue.errors import DamagedVersionError, MissingObjectError, PublishError
from segue.retraining.model_record import Artifact
from segue.runlog import keys
from segue.stores.base import Store

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

WEIGHTS, PROGRAM, CARD = "model.safetensors", "program.pt2", "card.md"
_OTHERS = "segue"
"""Entry of the file's metadata for the values of the state dict that are not tensors, as JSON."""


def put_artifact(store: Store, model: str, name: str, data: bytes, *, folder: str | None = None) -> Artifact:
    """Store a file of a version.

    By default, the name of the folder is the hash of the file, so that equal bytes are stored once.

    Raises:
        StoreWriteError: the file was not stored. It is safe to call the function again.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    key = keys.model_file(model, folder or sha256[:16], name)
    store.put(key, data)
    return Artifact(key=key, sha256=sha256, size_bytes=len(data))


def require_artifact(store: Store, artifact: Artifact) -> None:
    """Check that a file of a candidate exists with its recorded size. Each reader verifies the content.

    Raises:
        DamagedVersionError: the file is missing, or has another size.
        StoreReadError: the store could not be read.
    """
    folder = artifact.key.rpartition("/")[0]
    sizes = {each.key: each.size_bytes for each in store.list_objects(f"{folder}/")}
    if artifact.key not in sizes:
        raise DamagedVersionError(key=artifact.key, why="it is missing", is_in_service=False)
    if sizes[artifact.key] != artifact.size_bytes:
        why = f"it has {sizes[artifact.key]} bytes, and {artifact.size_bytes} were published"
        raise DamagedVersionError(key=artifact.key, why=why, is_in_service=False)


def get_artifact(store: Store, artifact: Artifact) -> bytes:
    """Read the bytes of a file and verify their hash.

    Raises:
        DamagedVersionError: the file is missing, or its bytes differ from the published bytes.
        StoreReadError: the store could not be read.
    """
    try:
        data = store.get(artifact.key)
    except MissingObjectError:
        raise DamagedVersionError(key=artifact.key, why="it is missing") from None
    found = hashlib.sha256(data).hexdigest()
    if found != artifact.sha256:
        why = f"its SHA-256 is {found[:12]}, and {artifact.sha256[:12]} was published"
        raise DamagedVersionError(key=artifact.key, why=why)
    return data


def weights_bytes(state: Mapping[str, Any], *, component: str) -> bytes:
    """Return a state dict as the bytes of a safetensors file, which other programs can also read.

    Raises:
        PublishError: the component is not a state dict with tensors, or contains a value that is not data.
    """
    import safetensors.torch
    import torch

    from segue.checkpoints.format.state_tree import encode_tree
    from segue.errors import UnsupportedStateError

    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors or not all(isinstance(name, str) for name in state):
        raise PublishError(what=component, why="it is not a state dict with tensors by name")
    try:
        inner: dict[str, torch.Tensor] = {}
        others = {
            name: encode_tree(value, path=name, tensors=inner) for name, value in state.items() if name not in tensors
        }
    except UnsupportedStateError as error:
        raise PublishError(what=component, why=str(error)) from None
    # safetensors refuses tensors that share memory, so each tensor gets its own memory.
    whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in (tensors | inner).items()}
    order = json.dumps({"order": list(state), "others": others})
    return bytes(safetensors.torch.save(whole, metadata={"format": "pt", _OTHERS: order}))


def state_of(data: bytes) -> OrderedDict[str, Any]:
    """Return the state dict in bytes from `weights_bytes`. The function runs no code from the bytes."""
    import safetensors.torch

    from segue.checkpoints.format.state_tree import decode_tree

    tensors = safetensors.torch.load(data)
    known = json.loads(_metadata(data).get(_OTHERS, "{}"))
    others = known.get("others", {})
    return OrderedDict(
        (name, decode_tree(others[name], tensors) if name in others else tensors[name])
        for name in known.get("order", list(tensors))
    )


def program_bytes(model: torch.nn.Module, example: tuple[Any, ...]) -> bytes:
    """Return the model as a program of torch.export. The first dimension of each tensor in `example` may vary.

    Raises:
        PublishError: torch.export does not support this model.
    """
    import torch

    def dynamic(value: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(value, torch.Tensor) and value.dim() else None

    file = io.BytesIO()
    try:
        program = torch.export.export(model, example, dynamic_shapes=tuple(map(dynamic, example)))
        torch.export.save(program, file)
    except Exception as error:  # torch.export raises many types.
        raise PublishError(what="the model", why=f"torch.export raised {type(error).__name__}: {error}") from error
    return file.getvalue()


def program_of(data: bytes) -> ExportedProgram:
    """Return the program in bytes from `program_bytes`.

    The format of torch.export may contain code. Call this function only with bytes that were verified to be the
    published bytes.
    """
    import torch

    program: ExportedProgram = torch.export.load(io.BytesIO(data))
    return program


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return found
