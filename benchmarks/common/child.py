"""The environment of processes that a benchmark starts. In any folder, these processes import `benchmarks` from this
checkout."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""


def child_environment(**variables: str) -> dict[str, str]:
    """This process's environment with the checkout first on Python's path, and `variables`."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)} | variables
