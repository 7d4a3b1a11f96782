"""The environment of a training process. The module sets the device, the threads and the kernels. The module also
describes the properties, including those of an accelerator, that must be equal for a bit-exact replay."""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from segue.errors import AcceleratorGoneError, SpecError
from segue.launch.determinism import DETERMINISTIC_VARIABLES
from segue.records import Environment
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.trainer.ranks.group import local_rank_count
from segue.user_objects.users_files import imported_packages

log = logging.getLogger(__name__)


def use_deterministic_kernels() -> None:
    """Limit this process and its children to deterministic kernels. The call must come before any computation.

    After the call, every operation that has no deterministic kernel raises an error.
    """
    for name, value in DETERMINISTIC_VARIABLES.items():
        os.environ.setdefault(name, value)
    allow_deterministic_alone()


def allow_deterministic_alone() -> None:
    """Let torch use only deterministic kernels, without changing the settings of the libraries below torch."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def prepare_device(spec: RunSpec, *, local_rank: int | None = None) -> torch.device:
    """Set kernels and thread count, and return the requested device. Each rank gets its own accelerator.

    Raises:
        SpecError: the requested accelerator is not available.
    """
    if spec.deterministic:
        use_deterministic_kernels()
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    name = ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
    if local_rank is not None and name == "cuda":
        name = f"cuda:{local_rank}"
    local_ranks = local_rank_count() if local_rank is not None else 1
    if name.startswith("cuda") and local_ranks > torch.cuda.device_count():
        found = torch.cuda.device_count()
        problem = f"ranks: {local_ranks} ranks need {local_ranks} accelerators, but this machine has {found}"
        raise SpecError(source="the run spec", problems=(problem,))
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # Some functions of torch ask for the number.
        if device.index is not None:
            torch.cuda.set_device(device)  # Code that requests no device number must get this one.
    except (RuntimeError, AssertionError):
        problem = f"device: {name!r} is not available on this machine; use auto or cpu"
        raise SpecError(source="the run spec", problems=(problem,)) from None
    return device


def refuse_lost_accelerator(spec: RunSpec, history: History, *, device: torch.device) -> None:
    """Raise an error if the run has trained on an accelerator, this machine has no accelerator, and the spec names no
    device.

    A machine with a failed driver looks like a machine without an accelerator. On the CPU, training would take many
    times as long, and no resume could be compared.

    Raises:
        AcceleratorGoneError: the run has to continue on another machine.
    """
    if spec.device != "auto" or device.type != "cpu":
        return
    devices = (attempt.claim.environment.device for attempt in reversed(history.attempts))
    used = next((name for name in devices if name != "cpu"), None)
    if used is not None:
        raise AcceleratorGoneError(device=used, host=platform.node())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def environment_of(device: torch.device, *, world_size: int = 1, is_deterministic: bool = False) -> Environment:
    """Describe the environment of this process."""
    return Environment(
        torch=torch.__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        device=device_name(device),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        processor=_processor(),
        threads=torch.get_num_threads(),
        world_size=world_size,
        arithmetic=2,
        deterministic=is_deterministic,
        packages=imported_packages(),
        compile_cache=compile_cache_id(device),
        **accelerator_facts(device),
    )


_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def device_name(device: torch.device) -> str:
    """Name of the accelerator's model, or `cpu`."""
    if device.type == "cpu":
        return "cpu"
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    module = torch.get_device_module(device)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type


def accelerator_facts(device: torch.device) -> dict[str, Any]:
    """Fields of an `Environment` that only an accelerator has; empty for a CPU."""
    if device.type == "cpu":
        return {}
    facts: dict[str, Any] = {"reduced_precision": _reduced_precision(), "kernel_choice": _kernel_choice()}
    if device.type == "cuda":
        facts["device_processors"] = torch.cuda.get_device_properties(device).multi_processor_count
        facts["driver"] = driver_version(_DRIVER_FILE)
        facts["libraries"] = _libraries()
    return facts


def driver_version(file: Path) -> str:
    """Version of the driver's kernel module; empty if there is no such module."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = _VERSION.search(text)
    return found.group() if found else ""


def _libraries() -> str:
    found = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    found["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _reduced_precision() -> str:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed = {
        "TF32 products of matrices": torch.get_float32_matmul_precision() != "highest",
        "TF32 convolutions": cudnn.allow_tf32,
        "sums in float16": matmul.allow_fp16_reduced_precision_reduction,
        "sums in bfloat16": matmul.allow_bf16_reduced_precision_reduction,
    }
    return ", ".join(name for name, is_allowed in allowed.items() if is_allowed)


def _kernel_choice() -> str:
    cudnn = torch.backends.cudnn
    choices = {
        "cuDNN times its kernels": cudnn.benchmark,
        "cuDNN is deterministic": cudnn.deterministic,
        "torch is deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.compile times its kernels": compile_times_kernels(),
    }
    return ", ".join(name for name, is_so in choices.items() if is_so)


_FILE = "segue-cache-id"


def compile_cache_id(device: torch.device) -> str:
    """Return the id of the cache folder of torch.compile; empty if torch.compile times no kernels. Segue assigns the id
    at the first use of the folder.

    If the folder cannot be written, it stores no choice of kernels, and therefore gets a new id in each process.
    """
    if "torch._inductor.compile_fx" not in sys.modules:  # Nothing was passed to torch.compile.
        return ""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return _id_of(Path(cache_dir())) if device.type != "cpu" or compile_times_kernels() else ""


def compile_times_kernels() -> bool:
    """Whether torch.compile times kernels for matrix products. Some other kernels of an accelerator are always
    timed."""
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
