"""Faults of a machine. They say nothing about the training code, so an attempt that ends with one counts as lost."""

from __future__ import annotations

from segue.errors.base import SegueError


class MachineError(SegueError):
    """This machine cannot go on with the run; another one can."""


class MachineTooSmallError(MachineError):
    """A sound checkpoint does not fit into the memory of this machine, or of its container."""

    def __init__(self, *, key: str, needed_bytes: int, memory_bytes: int) -> None:
        self.key, self.needed_bytes, self.memory_bytes = key, needed_bytes, memory_bytes
        super().__init__(
            f"{key} has {needed_bytes / 1e9:.1f} GB, and this process may use {memory_bytes / 1e9:.1f} GB of memory. "
            "The checkpoint stays as it is.",
            fix="resume on a machine, or in a container, with more memory.",
        )


class AcceleratorGoneError(MachineError):
    """The run trained on an accelerator, and this machine shows none."""

    def __init__(self, *, device: str, host: str) -> None:
        self.device, self.host = device, host
        super().__init__(
            f"the run trained on {device}, and {host} shows no accelerator to torch. A driver may have failed. Nothing "
            "was changed.",
            fix='run `nvidia-smi` there and take the machine out of the pool, or set device = "cpu" to go on without '
            "an accelerator.",
        )
