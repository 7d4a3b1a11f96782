"""Inputs of a recipe's code other than its arguments: environment variables, files, and settings of libraries.

Each checkpoint records these inputs. If only these inputs differ, the verdict does not change. If a replay differs, a
difference in these inputs is the likely cause.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from segue.continuity.code_hash import codes_of
from segue.credentials import names_secret
from segue.data.config import CONFIG_VARIABLE

_READ_VARIABLES = frozenset({"environ", "getenv"})
_READ_FILES = frozenset(
    {"open", "read_text", "read_bytes", "load", "loads", "loadtxt", "fromfile", "memmap", "read_csv", "read_parquet"}
    | {"read_json", "safe_load", "Path", "exists", "is_file", "load_file", "readlines", "read"}
)
_OF_LIBRARIES = (
    *(
        "OMP_",
        "MKL_",
        "KMP_",
        "GOMP_",
        "OPENBLAS_",
        "ONEDNN_",
        "DNNL_",
        "ATEN_",
        "TORCH_",
        "TORCHINDUCTOR_",
        "PYTORCH_",
    ),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_", "TRITON_", "XLA_", "HF_", "TOKENIZERS_", "PYTHONHASHSEED"),
    *("TZ", "LANG", "LC_"),
)
"""Prefixes of environment variables that libraries read themselves."""
_IS_FILE, _IS_VARIABLE = "file ", "environment variable "
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{1,60}")
MOST_FILES = 64
_WHOLE_BYTES, _ENDS_BYTES = 4 * 2**20, 64 * 2**10
_LONGEST_PATH = 300


def surroundings(functions: Iterable[FunctionType], files: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Return one reader for each file and environment variable whose name occurs in the user's functions.

    A reader returns the current content or value. `files` contains the paths that occur in the values of the functions.
    """
    codes = [code for function in functions for code in codes_of(function.__code__)]
    names = {text for code in codes if _READ_VARIABLES.intersection(code.co_names) for text in _texts(code)}
    # SEGUE_CONFIG names a different file in each process. The content of this file belongs to the run's identity.
    variables = [name for name in names if _VARIABLE.fullmatch(name) and name != CONFIG_VARIABLE]
    variables += [name for name in os.environ if name.startswith(_OF_LIBRARIES)]
    written = (text for code in codes if _READ_FILES.intersection(code.co_names) for text in _texts(code))
    found = {f"{_IS_VARIABLE}{name}": partial(_variable, name) for name in sorted(variables) if not names_secret(name)}
    return found | file_readers({*files, *written}) | {f"setting {name}": read for name, read in _SETTINGS.items()}


def path_in(name: str) -> str | None:
    """The path of the file that is recorded under this name; None if the name does not belong to a file."""
    return name.removeprefix(_IS_FILE) if name.startswith(_IS_FILE) else None


def reader_of(name: str) -> Callable[[], Any] | None:
    """Return a reader for the value that is recorded under this name; None if the value is confidential, or cannot be
    read by its name alone."""
    if (path := path_in(name)) is not None:
        return _File(path)
    variable = name.removeprefix(_IS_VARIABLE)
    return partial(_variable, variable) if variable != name and not names_secret(variable) else None


def file_readers(paths: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Return readers of these files, by the names under which the files are recorded."""
    return {f"{_IS_FILE}{path}": _File(path) for path in sorted(filter(_is_file, paths))[:MOST_FILES]}


def machine() -> dict[str, Any]:
    """Values that are equal in all processes on this machine. These values show which recorded values depend on the
    machine."""
    return {
        "cpus": os.cpu_count() or 1,
        "usable_cpus": len(os.sched_getaffinity(0)),
        "gpus": torch.cuda.device_count(),
        "host": platform.node(),
        "temporary_folder": tempfile.gettempdir(),
        "user": os.environ.get("USER", ""),
    }


_DENORMAL = 4e-39
"""A float32 number whose half is not zero, unless the process flushes very small numbers to zero."""
_SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": lambda: str(torch.get_default_dtype()),
    "torch.get_default_device()": lambda: str(torch.get_default_device()),
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.is_autocast_enabled()": lambda: torch.is_autocast_enabled("cpu"),
    "torch.get_autocast_dtype()": lambda: str(torch.get_autocast_dtype("cpu")),
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "torch.set_flush_denormal()": lambda: bool((torch.full((1,), _DENORMAL, device="cpu") * 0.5).item() == 0.0),
    "time.tzname": lambda: "/".join(time.tzname),
    "torch.backends.mkldnn.enabled": lambda: bool(torch.backends.mkldnn.enabled),
    "torch.backends.cudnn.benchmark": lambda: bool(torch.backends.cudnn.benchmark),
    "torch.backends.cudnn.deterministic": lambda: bool(torch.backends.cudnn.deterministic),
    "torch.backends.cudnn.allow_tf32": lambda: bool(torch.backends.cudnn.allow_tf32),
    "torch.backends.cuda.matmul.allow_tf32": lambda: bool(torch.backends.cuda.matmul.allow_tf32),
}
"""Global torch settings that change results."""


def _texts(code: CodeType) -> Iterator[str]:
    yield from (const for const in code.co_consts if isinstance(const, str))


def _variable(name: str) -> Any:
    value = os.environ.get(name)
    # The record has a hash of the value, because the value may be confidential. A hash is enough to see that the value
    # changed.
    return None if value is None else f"#{hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _is_file(path: str) -> bool:
    try:
        return 0 < len(path) < _LONGEST_PATH and Path(path).is_file()
    except (OSError, ValueError):
        return False


class _File:
    """The hash of a file's content. The file is read again only if its size or modification time has changed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int] | None = None
        self._hash: str | None = None

    def __call__(self) -> str | None:
        try:
            stat = self._path.stat()
            if (seen := (stat.st_size, stat.st_mtime_ns)) != self._seen:
                self._seen, self._hash = seen, self._read(stat.st_size)
        except OSError:
            return None
        return self._hash

    def _read(self, size: int) -> str:
        hasher = hashlib.sha256(str(size).encode())
        with self._path.open("rb") as file:
            hasher.update(file.read(_WHOLE_BYTES if size <= _WHOLE_BYTES else _ENDS_BYTES))
            if size > _WHOLE_BYTES:
                file.seek(-_ENDS_BYTES, os.SEEK_END)
                hasher.update(file.read())
        return f"#{hasher.hexdigest()[:16]}"
