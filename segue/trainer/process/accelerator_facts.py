"""Facts about an accelerator that affect the bits of a result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from segue.trainer.process.compile_cache import compile_times_kernels

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
