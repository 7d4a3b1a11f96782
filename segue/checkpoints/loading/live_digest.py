"""Computes digests of the live state.

A resume computes digests of its state twice, to compare the state with the commit. Tensors on an accelerator are copied
to the host in parts, through small page-locked buffers, and hashed. The host therefore never holds a copy of the whole
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import xxhash

from segue.checkpoints.format.digests import Digests, TensorDigest, digests_of, hash_bytes
from segue.checkpoints.format.snapshot import Snapshot, as_json, raw_bytes
from segue.checkpoints.saving.accelerator import Accelerator, TorchAccelerator
from segue.checkpoints.saving.gathering import Pair

_BUFFER_BYTES = 16 * 2**20
_THREADS = 4
"""Number of threads that compute hashes.

Each thread has two buffers. The accelerator fills one buffer while the thread hashes the other, at 10 to 20 GB/s.
"""
_SHOWN_VALUES, _SHOWN_TENSORS = 64, 64


def digest(
    live: Snapshot, *, accelerator: Accelerator | None = None, known: Mapping[str, TensorDigest] | None = None
) -> Digests:
    """Return the digests of all tensors and all components. The digests in `known` are not computed again."""
    device, found = accelerator or TorchAccelerator(), dict(known or {})
    asked = {name: tensor.detach() for name, tensor in live.tensors.items() if name not in found}
    there = {name: tensor for name, tensor in asked.items() if device.has(tensor) and tensor.nbytes}
    here = {name: tensor for name, tensor in asked.items() if name not in there}
    hashes = {name: hash_bytes(raw_bytes(tensor) if tensor.nbytes else b"") for name, tensor in here.items()}
    hashes |= _hashes_on(device, there)
    found |= {
        name: TensorDigest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hashes[name])
        for name, tensor in asked.items()
    }
    return digests_of(as_json(live.skeletons), found)


def _hashes_on(device: Accelerator, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    if not tensors:
        return {}
    device.drain(list(tensors.values()))
    # Largest tensors first; each goes to the thread with the fewest bytes so far.
    shares: list[list[str]] = [[] for _ in range(_THREADS)]
    bytes_of = [0] * _THREADS
    for name in sorted(tensors, key=lambda name: -tensors[name].nbytes):
        least = min(range(_THREADS), key=bytes_of.__getitem__)
        shares[least].append(name)
        bytes_of[least] += tensors[name].nbytes

    def hashed(share: Sequence[str]) -> dict[str, str]:
        return _hashes_of({name: tensors[name] for name in share}, device)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="segue-digest") as threads:
        return {name: text for found in threads.map(hashed, filter(None, shares)) for name, text in found.items()}


@dataclass
class _Batch:
    """Parts of tensors that fit into one buffer."""

    parts: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    size_bytes: int = 0


def _hashes_of(tensors: Mapping[str, torch.Tensor], device: Accelerator) -> dict[str, str]:
    hashers = {name: xxhash.xxh3_128() for name in tensors}
    with _locked_buffers(next(iter(tensors.values())), device) as buffers:
        pending: Callable[[], None] | None = None
        for number, batch in enumerate(_batches(tensors)):
            hash_it = _copied(batch, buffers[number % 2], device, hashers)
            if pending is not None:
                pending()
            pending = hash_it
        if pending is not None:
            pending()
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def _copied(
    batch: _Batch, buffer: torch.Tensor, device: Accelerator, hashers: Mapping[str, xxhash.xxh3_128]
) -> Callable[[], None]:
    """Start copying a batch. The returned function waits for the copy and hashes the bytes."""
    pairs: list[Pair] = []
    start = 0
    for _, part in batch.parts:
        pairs.append((buffer[start : start + part.nbytes].view(part.dtype).view(part.shape), part))
        start += part.nbytes
    copies = device.copy_aside(pairs)

    def hash_it() -> None:
        for copy in copies:
            copy.wait()
        start = 0
        for name, part in batch.parts:
            hashers[name].update(buffer[start : start + part.nbytes].numpy().data)
            start += part.nbytes

    return hash_it


def _batches(tensors: Mapping[str, torch.Tensor]) -> Iterator[_Batch]:
    """Yield all tensors in parts.

    Tensors with wide elements come first, so that each tensor is aligned to its element size.
    """
    batch = _Batch()
    for name in sorted(tensors, key=lambda name: -tensors[name].element_size()):
        for part in _parts(tensors[name]):
            if batch.size_bytes + part.nbytes > _BUFFER_BYTES:
                yield batch
                batch = _Batch()
            batch.parts.append((name, part))
            batch.size_bytes += part.nbytes
    if batch.parts:
        yield batch


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the parts of a tensor in order. Each part is contiguous and fits into a buffer."""
    if tensor.nbytes <= _BUFFER_BYTES:
        return (tensor,)
    flat = tensor.contiguous().view(-1)
    return torch.split(flat, _BUFFER_BYTES // tensor.element_size())


@contextmanager
def _locked_buffers(beside: torch.Tensor, accelerator: Accelerator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    both = torch.zeros(2, _BUFFER_BYTES, dtype=torch.uint8, device="cpu")
    is_locked = accelerator.lock_pages(both.view(-1), device=beside.device)
    try:
        yield both[0], both[1]
    finally:
        accelerator.drain([beside])  # After an exception, a copy may still be running.
        if is_locked:
            accelerator.unlock_pages(both.view(-1))


@dataclass(frozen=True)
class Looks:
    """A few recorded values of tensors on an accelerator, to detect later changes of the tensors."""

    versions: Mapping[str, tuple[int, int]]
    """The address and version of each tensor."""
    names: tuple[str, ...]
    """Names of the largest tensors. `values` contains a few values of each of these tensors."""
    values: tuple[torch.Tensor, ...]

    @classmethod
    def at(cls, tensors: Mapping[str, torch.Tensor]) -> Looks:
        """Keep the current address, the version and a few values of these tensors."""
        names = tuple(sorted(tensors, key=lambda name: -tensors[name].nbytes)[:_SHOWN_TENSORS])
        versions = {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
        return cls(versions, names, tuple(_shown(tensors[name]) for name in names))

    def finds_same(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether the names, addresses, versions and recorded values of these tensors have not changed."""
        now = {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
        if now != self.versions:
            return False
        seen = [_shown(tensors[name]) for name in self.names]
        return all(torch.equal(one, other) for one, other in zip(seen, self.values, strict=True))


def _shown(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)
    shown = flat[:: max(flat.numel() // _SHOWN_VALUES, 1)]
    return shown.clone(memory_format=torch.contiguous_format).view(torch.uint8)
