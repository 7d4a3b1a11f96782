"""Defines the records of a checkpoint: reference, environment, origin and manifest."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic import Field, field_serializer

from segue.records.documents import Value
from segue.shard import Shard
from segue.units import MOST_COUNT


class CheckpointRef(Value):
    """A reference to a committed checkpoint: the log slot of the commit record, the step and the attempt."""

    slot: int = Field(ge=0, le=MOST_COUNT)
    step: int = Field(ge=0, le=MOST_COUNT)
    attempt_id: str


def _of_accelerator(default: Any, description: str) -> Any:
    """Return a field that is stored only for environments with an accelerator. Other records stay unchanged."""
    return Field(default, exclude_if=lambda value: value == default, description=description)


_PERHAPS = ("packages", "compile_cache")
"""Fields of an environment that may differ without an effect on the results.

A difference in these fields matters only if the results differ.
"""


class Environment(Value):
    """The software and hardware that must be equal for a replay to match bit for bit."""

    torch: str
    python: str = Field(
        "", description="Python version. Code is compared by its bytecode, which depends on this version."
    )
    device: str = Field(description="`cpu`, or the name of the accelerator.")
    instruction_set: str = Field(description="CPU instruction set that torch uses, e.g. AVX2.")
    processor: str = Field("", description="CPU model; kernels select their instructions by the CPU model.")
    threads: int = Field(
        ge=1, description="Number of intra-op threads; the order of reductions depends on this number."
    )
    world_size: int = Field(1, ge=1)
    arithmetic: int = Field(
        1,
        ge=1,
        description="Version of segue's own arithmetic: 1 sums the gradient norm by parameter group, 2 in model order.",
    )
    deterministic: bool = Field(
        False,
        # Left out if it is not set, so that names of environments do not change and older versions can read the record.
        exclude_if=lambda is_set: not is_set,
        description="Whether torch used only deterministic kernels; their results may differ from other kernels in "
        "some bits.",
    )

    device_processors: int = _of_accelerator(
        0,
        "Number of multiprocessors of the accelerator. Dropout masks depend on this number, and partitions of one "
        "device have the same device name.",
    )
    driver: str = _of_accelerator("", "Version of the accelerator driver.")
    libraries: str = _of_accelerator("", "Versions of CUDA, cuDNN and NCCL, or of the equivalent libraries.")
    reduced_precision: str = _of_accelerator("", "Operations for which torch may use reduced precision, e.g. TF32.")
    kernel_choice: str = _of_accelerator("", "How torch chooses kernels: by measuring their times, or by fixed rules.")
    packages: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=lambda packages: not packages,
        description="Versions of the installed packages that the training code imports and that were loaded.",
    )
    compile_cache: str = _of_accelerator(
        "",
        "Id of the cache folder in which torch.compile stores the kernels that it chose by their measured times; "
        "empty: no kernel was timed.",
    )

    def differs_from(self, other: Environment) -> tuple[str, ...]:
        """Return the names of the fields that differ. A bitwise comparison is valid only if no field differs.

        The comparison ignores `packages` and `compile_cache`, because a difference in them may have no effect.
        """
        names = (name for name in type(self).model_fields if name not in _PERHAPS)
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    def other_packages(self, other: Environment) -> tuple[str, ...]:
        """Return the packages whose versions differ between this environment and the current environment `other`, e.g.
        "numpy 2.4.5 (now 2.4.6)".
        """
        names = [name for name in self.packages if self.packages[name] != other.packages.get(name, self.packages[name])]
        return tuple(f"{name} {self.packages[name]} (now {other.packages[name]})" for name in names)

    def has_other_kernels(self, other: Environment) -> bool:
        """Whether torch.compile timed kernels in both environments, and stored its choices in different folders."""
        return "" not in (self.compile_cache, other.compile_cache) and self.compile_cache != other.compile_cache

    @property
    def short_id(self) -> str:
        """A short name of the environment: device, instruction set, thread count, rank count, and a hash.

        Two environments with the same name are equal.
        """
        parts = f"{self.device} {self.instruction_set} {self.threads}t {self.world_size}r"
        digest = hashlib.sha256(self.model_dump_json(exclude=set(_PERHAPS)).encode()).hexdigest()
        return re.sub(r"[^a-z0-9]+", "-", parts.lower()).strip("-") + f"-{digest[:8]}"


class WeightsFile(Value):
    """A file from outside the run that holds its initial weights."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Fork(Value):
    """The checkpoint of another run in the same store that a run used as its first checkpoint."""

    run_id: str
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    step: int = Field(ge=0)
    reset: tuple[str, ...] = Field(
        (), description="Parts that were not taken from the checkpoint, because the user named them in --reset."
    )

    @property
    def name(self) -> str:
        """The name of the checkpoint in the form for `segue run --from`."""
        return f"{self.run_id}@{self.step}"


class CurveDigest(Value):
    """The rows of one part of the loss curve up to a checkpoint."""

    part: int = Field(ge=0, description="Number of the part among the parts of the attempt, from 0.")
    rows: int = Field(ge=0, description="Number of rows of the part up to the checkpoint; later rows may follow.")
    sha256: str = Field(description="SHA-256 of the values in these rows, for any layout of the file.")


class Manifest(Value):
    """The description of one checkpoint, with which a checkpoint is located, checked and restored."""

    step: int = Field(ge=0, le=MOST_COUNT)
    samples_seen: int = Field(ge=0, le=MOST_COUNT)
    epoch: int = Field(ge=0, le=MOST_COUNT, description="Epoch of the next sample, from 0.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint from which the attempt resumed; None: step 0.")
    shards: tuple[Shard, ...]
    tensor_count: int = Field(
        ge=0, description="Number of tensors in the state; the index has their types and digests."
    )
    new_bytes: int = Field(0, ge=0, description="Number of bytes that this checkpoint added to the store.")
    saves_since_full: int = Field(0, ge=0, description="Number of saves since the last save that stored every tensor.")
    components: dict[str, str] = Field(description="Digest of the whole state of each component, by name.")
    environment: Environment
    metric: float | None = Field(None, description="Metric of the user at this step; None: not evaluated at this step.")
    curve: tuple[CurveDigest, ...] = Field(
        (),
        exclude_if=lambda parts: not parts,  # Manifests without a curve stay readable for older versions.
        description="Parts of the loss curve that the attempt wrote since its previous checkpoint. The manifests of "
        "earlier checkpoints name the earlier parts.",
    )
    imported_from: WeightsFile | None = Field(None, description="File whose weights were imported; None: no import.")
    forked_from: Fork | None = Field(
        None, description="Checkpoint of another run from which this run was forked; None: no fork."
    )
    lost_ranks: tuple[int, ...] = Field(
        (),
        exclude_if=lambda ranks: not ranks,
        description="Ranks that had ended before rank 0 committed this state alone.",
    )

    @field_serializer("shards")
    def _shards_as_json(self, shards: tuple[Shard, ...]) -> list[dict[str, Any]]:
        return [shard.to_json() for shard in shards]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def origin(self) -> str | None:
        """The origin of an imported or forked state, in words. None if steps of this run produced the state."""
        if self.forked_from is not None:
            return f"forked from {self.forked_from.name}"
        return None if self.imported_from is None else f"imported from {self.imported_from.name}"
