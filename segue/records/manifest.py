"""A checkpoint: a reference to it, its environment and origin, its manifest."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic import Field, field_serializer

from segue.records.documents import Value
from segue.shard import Shard
from segue.units import MOST_COUNT


class CheckpointRef(Value):
    """A reference to a committed checkpoint, by the log slot of its commit."""

    slot: int = Field(ge=0, le=MOST_COUNT)
    step: int = Field(ge=0, le=MOST_COUNT)
    attempt_id: str


def _of_accelerator(default: Any, description: str) -> Any:
    """A field that only environments with an accelerator have; records of other environments do not change."""
    return Field(default, exclude_if=lambda value: value == default, description=description)


_PERHAPS = ("packages", "compile_cache")
"""Fields of an environment that may differ though the bits are equal; the bits decide whether they count."""


class Environment(Value):
    """The software and hardware that must be equal for a replay to match bit for bit."""

    torch: str
    python: str = Field("", description="Python version; the bytecode by which code is compared depends on it.")
    device: str = Field(description="`cpu`, or the accelerator's name.")
    instruction_set: str = Field(description="CPU capability that torch dispatches to.")
    processor: str = Field("", description="CPU model; kernels select their instructions by it.")
    threads: int = Field(ge=1, description="Intra-op threads; the order of reductions depends on it.")
    world_size: int = Field(1, ge=1)
    arithmetic: int = Field(
        1, ge=1, description="How segue itself computes: 1 sums the gradient norm by parameter group, 2 by model order."
    )
    deterministic: bool = Field(
        False,
        # Left out if it is not set: so names of environments do not change, and older versions can read the record.
        exclude_if=lambda is_set: not is_set,
        description="Whether torch was limited to deterministic kernels; the bits of results may then differ.",
    )

    device_processors: int = _of_accelerator(
        0, "Multiprocessors of the accelerator; masks of dropout depend on it. Parts of one device share its name."
    )
    driver: str = _of_accelerator("", "Version of the accelerator's driver.")
    libraries: str = _of_accelerator("", "Versions of CUDA, cuDNN and NCCL, or of their counterparts.")
    reduced_precision: str = _of_accelerator("", "Which products torch may round, as to TF32.")
    kernel_choice: str = _of_accelerator("", "How kernels are chosen: by timing them, or by rule.")
    packages: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=lambda packages: not packages,
        description="Versions of the installed packages that the training code imports, as far as they were loaded.",
    )
    compile_cache: str = _of_accelerator(
        "", "Which cache folder torch.compile keeps the kernels in that it chose by timing; empty if it timed none."
    )

    def differs_from(self, other: Environment) -> tuple[str, ...]:
        """Names of the fields that differ; bitwise comparison is valid if there are none.

        `packages` and `compile_cache` are not among them: another version or another folder may change nothing.
        """
        names = (name for name in type(self).model_fields if name not in _PERHAPS)
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    def other_packages(self, other: Environment) -> tuple[str, ...]:
        """Packages that both have, in different versions, as "numpy 2.4.5 (now 2.4.6)"; `other` is the current one."""
        names = [name for name in self.packages if self.packages[name] != other.packages.get(name, self.packages[name])]
        return tuple(f"{name} {self.packages[name]} (now {other.packages[name]})" for name in names)

    def has_other_kernels(self, other: Environment) -> bool:
        """Whether torch.compile timed its kernels in both, and keeps its choices in different folders."""
        return "" not in (self.compile_cache, other.compile_cache) and self.compile_cache != other.compile_cache

    @property
    def short_id(self) -> str:
        """A name that only equal environments share: device, instruction set, counts, a hash."""
        parts = f"{self.device} {self.instruction_set} {self.threads}t {self.world_size}r"
        digest = hashlib.sha256(self.model_dump_json(exclude=set(_PERHAPS)).encode()).hexdigest()
        return re.sub(r"[^a-z0-9]+", "-", parts.lower()).strip("-") + f"-{digest[:8]}"


class WeightsFile(Value):
    """A file from outside the run that holds its initial weights."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Fork(Value):
    """The checkpoint of another run in the same store, with which a run began."""

    run_id: str
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    step: int = Field(ge=0)
    reset: tuple[str, ...] = Field((), description="Parts that were not taken from it, as asked for.")

    @property
    def name(self) -> str:
        """The checkpoint, as `segue run --from` takes it."""
        return f"{self.run_id}@{self.step}"


class Manifest(Value):
    """The record by which one checkpoint is found, checked and restored."""

    step: int = Field(ge=0, le=MOST_COUNT)
    samples_seen: int = Field(ge=0, le=MOST_COUNT)
    epoch: int = Field(ge=0, le=MOST_COUNT, description="Pass over the data to which the next sample belongs.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint from which the attempt resumed.")
    shards: tuple[Shard, ...]
    tensor_count: int = Field(ge=0, description="Tensors in the state; their types and digests are in the index.")
    new_bytes: int = Field(0, ge=0, description="Bytes that this checkpoint added to the store.")
    saves_since_full: int = Field(0, ge=0, description="Saves since the last one that stored every tensor.")
    components: dict[str, str] = Field(description="Digest of each component's whole state.")
    environment: Environment
    metric: float | None = Field(None, description="The user's metric at this step; None if it was not evaluated.")
    imported_from: WeightsFile | None = Field(None, description="File of the imported weights; None: trained here.")
    forked_from: Fork | None = Field(None, description="Checkpoint of another run; None: of this run alone.")

    @field_serializer("shards")
    def _shards_as_json(self, shards: tuple[Shard, ...]) -> list[dict[str, Any]]:
        return [shard.to_json() for shard in shards]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def origin(self) -> str | None:
        """The origin of its state, if no step of this run led to it."""
        if self.forked_from is not None:
            return f"forked from {self.forked_from.name}"
        return None if self.imported_from is None else f"imported from {self.imported_from.name}"
