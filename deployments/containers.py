"""The commands, images and variables that the job templates of all pools of containers share."""

from __future__ import annotations

from typing import Any, Literal, get_args

from segue.doctor.pools.segment_job import SIGTERM_VARIABLE

PoolName = Literal["spot", "on-demand", "parents"]
POOLS: tuple[PoolName, ...] = get_args(PoolName)
_SEGMENT_COMMAND, _PARENT_COMMAND = "python -m segue.flows.prefect_engine", "python -m prefect.engine"
_IMAGES = "registry.example.com/segue"
"""Placeholder for the user's images, in all files."""


def command(pool: PoolName) -> dict[str, Any]:
    """The variable that says what a container runs."""
    default = _PARENT_COMMAND if pool == "parents" else _SEGMENT_COMMAND
    return text("Starts the engine directly, so that SIGTERM reaches segue.", default)


def image(*, has_accelerators: bool) -> dict[str, Any]:
    """The variable that names the image."""
    default = f"{_IMAGES}:{'cuda' if has_accelerators else 'cpu'}"
    return text("Image with segue, the recipe and its dependencies.", default)


def environment(event: str) -> dict[str, Any]:
    """The environment variables; Prefect adds a deployment's own to the default. `event` ends a flow run early."""
    return {
        "type": "object",
        "title": "Env",
        "description": f"Environment variables. The one that is set keeps Prefect from starting an {event} flow run "
        "again in the same pool: segue decides where the run goes on.",
        "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "default": {SIGTERM_VARIABLE: "crash"},
    }


def text(description: str, default: str | None) -> dict[str, Any]:
    """A variable that is a text; a variable without a default may be left out."""
    kind: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]} if default is None else {"type": "string"}
    return {"description": description, "default": default, **kind}


def number(description: str, default: int) -> dict[str, Any]:
    """A variable that is a whole number."""
    return {"description": description, "default": default, "type": "integer", "minimum": 0}
