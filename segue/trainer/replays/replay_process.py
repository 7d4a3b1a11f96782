"""A replay process that runs beside the trainer. It has a low priority, and ends with the trainer. The module also
checks that there is enough memory."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

from segue.launch.memory import free_bytes
from segue.process import Parent, end_with

_NICENESS = 10
_POLL_SECONDS = 1.0
_OF_FREE_MEMORY = 0.5
"""Share of free memory that a second copy of the state may use."""
_OF_FREE_ON_DEVICE = 0.9
_CONTEXT_BYTES = 2**30
"""Device memory that a process needs in addition to its tensors, for its context and for the workspaces of
libraries."""


def begin_beside(parent_pid: int) -> None:
    """Give the trainer priority in computing time and memory, and end when the process `parent_pid` ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    with suppress(OSError):
        # If memory runs out, the kernel must kill this process before the trainer.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    end_with(Parent(parent_pid), poll_seconds=_POLL_SECONDS)


def leave(code: int) -> NoReturn:
    """End this process immediately. The answer of the process is written, and a clean-up would take as long as several
    steps."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def why_no_room(state_bytes: int) -> str:
    """If memory is too small for a second process with a copy of the state, return a text that names this memory;
    otherwise an empty text."""
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        free, _ = torch.cuda.mem_get_info()
        # Reserved memory counts, not only allocated memory, because a second process cannot use the rest of the
        # reserved memory.
        needed = torch.cuda.max_memory_reserved() + _CONTEXT_BYTES
        if needed > _OF_FREE_ON_DEVICE * free:
            return f"the device has {free / 1e9:.1f} GB left, and a second process would take {needed / 1e9:.1f} GB"
    needed, left = max(state_bytes, _own_bytes()), free_bytes()
    if needed <= _OF_FREE_MEMORY * left:
        return ""
    return f"{left / 1e9:.1f} GB of memory are left, and a second process would take {needed / 1e9:.1f} GB"


def cap_device_memory(device: torch.device) -> None:
    """Limit device memory, so that this process runs out of memory before the trainer does."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(_OF_FREE_ON_DEVICE * free / total, device)


def _own_bytes() -> int:
    """Resident memory of this process, in bytes. A second process will need the same amount, because it will load the
    same data set."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
