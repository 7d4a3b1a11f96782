"""Environment variables that limit the libraries below torch to deterministic kernels. This module is fast to import.

The libraries read the variables once, at their first use. The variables must be set before this first use.
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
"""The variables give each stream of cuBLAS a fixed workspace, and make MKL independent of the alignment of arrays.

With the variables, the number of threads does not depend on the machine's load.
"""


def trainer_environment(*, is_deterministic: bool) -> dict[str, str]:
    """Return the environment for a process that trains. Variables that are already set keep their values."""
    return (dict(DETERMINISTIC_VARIABLES) if is_deterministic else {}) | dict(os.environ)
