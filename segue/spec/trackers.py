"""The table `trackers` of a run spec: experiment trackers by name, each with its options."""

from __future__ import annotations

import re

from pydantic import JsonValue

from segue.credentials import holds_credentials

TrackerOptions = dict[str, JsonValue]

TRACKERS = {
    "mlflow": "segue.integrations.mlflow:MlflowTracker",
    "tensorboard": "segue.integrations.tensorboard:TensorBoardTracker",
}
"""The trackers that segue has, and where each is."""

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def why_no_tracker(name: str, options: TrackerOptions) -> str | None:
    """Why this cannot be a tracker with its options; None if it can, as far as its name and options show."""
    if name not in TRACKERS and not _PATH.fullmatch(name):
        return f"{name!r} is no tracker; use {', '.join(TRACKERS)}, or your own as package.module:factory"
    for option, value in options.items():
        if isinstance(value, str) and holds_credentials(value):
            return f"{name}.{option} holds credentials, which would be stored; give them by environment variables"
    return None
