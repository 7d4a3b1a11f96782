"""Train PyTorch models on interruptible spot capacity, in segments that end at a committed checkpoint.

The names below are the public surface. They are loaded on first use, so that
`import segue` stays cheap and free of torch, boto3 and prefect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Recipe": "segue.recipe",
    "RunLog": "segue.runlog.log",
    "RunSpec": "segue.spec",
    "SegueError": "segue.errors",
    "StoreSpec": "segue.spec",
    "curve": "segue.curves.frame",
    "open_store": "segue.stores",
}

__all__ = [  # noqa: PLE0604 - the names are the keys above
    "__version__",
    *_HOMES,
]

if TYPE_CHECKING:
    from segue.curves.frame import curve as curve
    from segue.errors import SegueError as SegueError
    from segue.recipe import Recipe as Recipe
    from segue.runlog.log import RunLog as RunLog
    from segue.spec import RunSpec as RunSpec
    from segue.spec import StoreSpec as StoreSpec
    from segue.stores import open_store as open_store


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'segue' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
