"""The id of this process's cache of compiled kernels. The cache has an id only if `torch.compile` chooses kernels by
timing them.

The choices are stored in the cache folder of torch.compile. A new machine has no cache folder, so the kernels are timed
again, and the newly chosen kernels may sum in a different order
(https://docs.pytorch.org/docs/stable/torch.compiler_caching.html).
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

import torch

log = logging.getLogger(__name__)

_FILE = "segue-cache-id"


def compile_cache_id(device: torch.device) -> str:
    """Return the id of the cache folder; empty if no kernels are timed. Segue assigns the id at the first use of the
    folder.

    If a folder cannot be written, it stores no choices, so it gets a new id in each process.
    """
    if "torch._inductor.compile_fx" not in sys.modules:  # Nothing was passed to torch.compile.
        return ""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return _id_of(Path(cache_dir())) if device.type != "cpu" or compile_times_kernels() else ""


def compile_times_kernels() -> bool:
    """Whether kernels for matrix products are timed. Some other kernels of an accelerator are always timed."""
    inductor = sys.modules.get("torch._inductor.config")  # Importing it takes seconds; without it nothing is compiled.
    return inductor is not None and bool(inductor.max_autotune or inductor.max_autotune_gemm)


@cache
def _id_of(folder: Path) -> str:
    file, new = folder / _FILE, uuid4().hex[:12]
    own = folder / f"{_FILE}-{new}"
    try:
        own.write_text(new, encoding="ascii")
        try:
            with suppress(FileExistsError):
                os.link(own, file)  # The file appears with its content, and only one process can make it.
        finally:
            own.unlink()
        return file.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        log.debug("could not write an id into the cache folder of torch.compile folder=%s reason=%s", folder, error)
        return new
