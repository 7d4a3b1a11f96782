"""The device, the threads, and the environment that must be equal for a replay to match bit for bit."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from segue.errors import SpecError
from segue.records import Environment
from segue.spec import RunSpec


def prepare_device(spec: RunSpec, *, local_rank: int | None = None) -> torch.device:
    """Set the thread count and return the requested device; each of several ranks gets its own accelerator.

    Raises:
        SpecError: the requested accelerator is not available.
    """
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    name = ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
    if local_rank is not None and name == "cuda":
        name = f"cuda:{local_rank}"
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if local_rank is not None else 1
    if name.startswith("cuda") and local_ranks > torch.cuda.device_count():
        found = torch.cuda.device_count()
        problem = f"ranks: {local_ranks} ranks need {local_ranks} accelerators, and this machine has {found}"
        raise SpecError(source="the run spec", problems=(problem,))
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.index is not None:
            torch.cuda.set_device(device)  # Code that requests no device number must get this one.
    except (RuntimeError, AssertionError):
        problem = f"device: {name!r} is not available on this machine; use auto or cpu"
        raise SpecError(source="the run spec", problems=(problem,)) from None
    return device


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def environment_of(device: torch.device, *, world_size: int = 1) -> Environment:
    """This process's environment."""
    return Environment(
        torch=torch.__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        processor=_processor(),
        threads=torch.get_num_threads(),
        world_size=world_size,
        arithmetic=2,
    )
