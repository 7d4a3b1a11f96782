"""Train PyTorch models on interruptible spot capacity, in segments that end at a committed checkpoint.

The names in `__all__` are the public API. Each name is loaded on first use, so that `import segue` is fast and imports
neither torch nor boto3 nor prefect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "EarlyStop": "segue.recipe",
    "Recipe": "segue.recipe",
    "Run": "segue.run",
    "RunSpec": "segue.spec",
    "SegueError": "segue.errors",
    "StoreSpec": "segue.spec",
    "Variables": "segue.user_objects.variables",
    "check_curve": "segue.curves.expectations",
    "curve": "segue.curves.frame",
    "data_frame": "segue.data.frames",
    "drill": "segue.resume_drill",
    "export_checkpoint": "segue.interop.export",
    "fork_run": "segue.interop.fork",
    "import_weights": "segue.interop.import_weights",
    "load_checkpoint": "segue.interop.load",
    "load_model": "segue.retraining.versions.serving",
    "open_run": "segue.run",
    "open_store": "segue.stores",
    "plan": "segue.planning",
    "session": "segue.local_session",
}

__all__ = [  # noqa: PLE0604 - the names are the keys above
    "__version__",
    *_HOMES,
]

if TYPE_CHECKING:
    from segue.curves.expectations import check_curve as check_curve
    from segue.curves.frame import curve as curve
    from segue.data.frames import data_frame as data_frame
    from segue.errors import SegueError as SegueError
    from segue.interop.export import export_checkpoint as export_checkpoint
    from segue.interop.fork import fork_run as fork_run
    from segue.interop.import_weights import import_weights as import_weights
    from segue.interop.load import load_checkpoint as load_checkpoint
    from segue.local_session import session as session
    from segue.planning import plan as plan
    from segue.recipe import EarlyStop as EarlyStop
    from segue.recipe import Recipe as Recipe
    from segue.resume_drill import drill as drill
    from segue.retraining.versions.serving import load_model as load_model
    from segue.run import Run as Run
    from segue.run import open_run as open_run
    from segue.spec import RunSpec as RunSpec
    from segue.spec import StoreSpec as StoreSpec
    from segue.stores import open_store as open_store
    from segue.user_objects.variables import Variables as Variables


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'segue' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
