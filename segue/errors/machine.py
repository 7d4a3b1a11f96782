"""Faults of a machine. An attempt that ends with a fault of its machine counts as lost, not as failed."""

from __future__ import annotations

from segue.errors.base import SegueError


class MachineError(SegueError):
    """This machine cannot continue the run, but another machine can."""


class MachineTooSmallError(MachineError):
    """An undamaged checkpoint does not fit into the memory of this machine or of its container."""

    def __init__(self, *, key: str, needed_bytes: int, memory_bytes: int) -> None:
        self.key, self.needed_bytes, self.memory_bytes = key, needed_bytes, memory_bytes
        super().__init__(
            f"{key} has {needed_bytes / 1e9:.1f} GB, but this process may use only {memory_bytes / 1e9:.1f} GB of "
            "memory. "
            "The checkpoint was not changed.",
            fix="resume on a machine, or in a container, with more memory.",
        )


class AcceleratorGoneError(MachineError):
    """The run trained on an accelerator, but torch finds no accelerator on this machine."""

    def __init__(self, *, device: str, host: str) -> None:
        self.device, self.host = device, host
        super().__init__(
            f"the run trained on {device}, but torch finds no accelerator on {host}. A driver may have failed. "
            "Nothing was changed.",
            fix='run `nvidia-smi` there and remove the machine from the pool, or set device = "cpu" to continue '
            "without an accelerator.",
        )
