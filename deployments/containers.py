"""Defines the commands, images and variables that all job templates of container pools share."""

from __future__ import annotations

from typing import Any, Literal, get_args

from segue.doctor.pools.segment_job import SIGTERM_VARIABLE

PoolName = Literal["spot", "on-demand", "parents"]
POOLS: tuple[PoolName, ...] = get_args(PoolName)
_SEGMENT_COMMAND, _PARENT_COMMAND = "python -m segue.flows.prefect_engine", "python -m prefect.engine"
_IMAGES = "registry.example.com/segue"
"""Placeholder for the registry of the user's images, in all files."""


def command(pool: PoolName) -> dict[str, Any]:
    """Return the template variable for the command of a container."""
    default = _PARENT_COMMAND if pool == "parents" else _SEGMENT_COMMAND
    return text("Starts the engine directly, so that SIGTERM reaches segue.", default)


def image(*, has_accelerators: bool) -> dict[str, Any]:
    """Return the template variable for the image of a container."""
    default = f"{_IMAGES}:{'cuda' if has_accelerators else 'cpu'}"
    return text("Image with segue, the recipe and its dependencies.", default)


def environment(event: str) -> dict[str, Any]:
    """Return the template variable for the environment. `event` describes flow runs that Prefect must not restart."""
    return {
        "type": "object",
        "title": "Env",
        "description": f"Environment variables. The default variable keeps Prefect from starting an {event} flow run "
        "again in the same pool, because segue decides where the run continues.",
        "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "default": {SIGTERM_VARIABLE: "crash"},
    }


def text(description: str, default: str | None) -> dict[str, Any]:
    """Return a template variable for a text. Without a default, the variable is optional."""
    kind: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]} if default is None else {"type": "string"}
    return {"description": description, "default": default, **kind}


def number(description: str, default: int) -> dict[str, Any]:
    """Return a template variable for a whole number."""
    return {"description": description, "default": default, "type": "integer", "minimum": 0}
