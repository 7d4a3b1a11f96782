"""The environment of processes that a benchmark starts. In any folder, these processes import `benchmarks` from this
checkout."""

from __future__ import annotations

import compileall
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""


def child_environment(**variables: str) -> dict[str, str]:
    """This process's environment with the checkout first on Python's path, and `variables`.

    The processes import compiled modules, as the processes of an installed package do."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)} | variables
    return {name: value for name, value in found.items() if name != "PYTHONDONTWRITEBYTECODE"}


def compile_checkout() -> None:
    """Compile all modules of the checkout, so that the first process does not do it while its start is measured."""
    for folder in ("segue", "benchmarks"):
        compileall.compile_dir(ROOT / folder, quiet=2)
