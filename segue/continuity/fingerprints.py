"""Cheap, exact marks of the data a step consumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from segue.checkpoints.snapshot import raw_bytes
from segue.trainer.order import Ids, mix


def batch_fingerprint(ids: Ids) -> str:
    """Order-free hash of the sample ids: the sum of their mixed values, 64 bits, in hex.

    Order-free, because another world size deals the same global batch out in another order.
    """
    with np.errstate(over="ignore"):
        return f"{int(mix(ids).sum(dtype=np.uint64)):016x}"


def input_fingerprint(content: Any) -> str:
    """Hash of a batch's content: every tensor's bytes, type and shape, in the order of its structure."""
    hasher = xxhash.xxh3_64()
    _feed(content, hasher)
    return hasher.hexdigest()


def _feed(content: Any, hasher: Any) -> None:
    if isinstance(content, torch.Tensor) and content.layout is torch.strided and not content.is_conj():
        hasher.update(f"{content.dtype}{tuple(content.shape)}".encode())
        hasher.update(raw_bytes(content.detach().cpu().contiguous()))
    elif type(content) is np.ndarray and content.dtype != object:
        hasher.update(f"{content.dtype}{content.shape}".encode())
        hasher.update(np.ascontiguousarray(content).view(np.uint8))
    elif isinstance(content, Mapping):
        for key in content:
            hasher.update(str(key).encode())
            _feed(content[key], hasher)
    elif isinstance(content, (list, tuple)):
        hasher.update(f"{type(content).__name__}{len(content)}".encode())
        for item in content:
            _feed(item, hasher)
    elif content is None or isinstance(content, (bool, int, float, str, bytes)):
        hasher.update(repr(content).encode())
    else:
        # Nothing is known of it that is the same in every process; what it holds is not compared.
        hasher.update(type(content).__qualname__.encode())
