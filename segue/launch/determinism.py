"""Environment variables that limit libraries below torch to deterministic kernels. Light to import.

The libraries read them once, at their first use, so they must be set before that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

DETERMINISTIC_VARIABLES: Mapping[str, str] = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MKL_CBWR": "AUTO,STRICT",
    "MKL_DYNAMIC": "FALSE",
    "OMP_DYNAMIC": "FALSE",
}
"""A fixed workspace for each stream of cuBLAS, MKL without regard to the alignment of arrays, and a number of threads
that does not depend on the load of the machine."""


def trainer_environment(*, is_deterministic: bool) -> dict[str, str]:
    """The environment of a process that trains. A value that is set already is kept."""
    return (dict(DETERMINISTIC_VARIABLES) if is_deterministic else {}) | dict(os.environ)
