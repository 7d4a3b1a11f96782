"""Which cache of compiled kernels this process uses, if `torch.compile` chooses kernels by timing them.

Such a choice is kept in the cache folder of torch.compile. A new machine has none: there the kernels are timed again,
and other kernels may add in another order (https://docs.pytorch.org/docs/stable/torch.compiler_caching.html).
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
    """The name of the cache folder's content, given when segue first sees the folder; empty if nothing is timed.

    A folder that cannot be written keeps no choice: it has another name in each process.
    """
    if "torch._inductor.compile_fx" not in sys.modules:  # Nothing was passed to torch.compile.
        return ""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return _id_of(Path(cache_dir())) if device.type != "cpu" or compile_times_kernels() else ""


def compile_times_kernels() -> bool:
    """Whether products of matrices are timed too; some other kernels of an accelerator always are."""
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
        log.debug("the cache folder of torch.compile cannot be named folder=%s reason=%s", folder, error)
        return new
