"""Defines the table `trackers` of a run spec: experiment trackers by name, with the options of each tracker."""

from __future__ import annotations

import re

from pydantic import JsonValue

from segue.credentials import holds_credentials

TrackerOptions = dict[str, JsonValue]

TRACKERS = {
    "mlflow": "segue.integrations.mlflow:MlflowTracker",
    "tensorboard": "segue.integrations.tensorboard:TensorBoardTracker",
}
"""The trackers that segue provides, with the paths of their classes."""

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def why_no_tracker(name: str, options: TrackerOptions) -> str | None:
    """Return why this name or these options are not valid for a tracker. Return None if they are valid."""
    if name not in TRACKERS and not _PATH.fullmatch(name):
        return f"{name!r} is not a tracker; use {', '.join(TRACKERS)}, or your own tracker as package.module:factory"
    for option, value in options.items():
        if isinstance(value, str) and holds_credentials(value):
            return f"{name}.{option} contains credentials, which would be stored; pass them in environment variables"
    return None
