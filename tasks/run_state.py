"""The state of a run's parent in the Prefect UI, from the decision that ended the run."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed


def state_of_run(action: str, message: str) -> State[Any]:
    """Completed for a run that reached its goal, Cancelled if a person stopped it, else Failed named by the action."""
    if action == "finished":
        return Completed(message=message)
    if action in ("stopped", "cancelled"):
        return Cancelled(message=message)
    return Failed(name=action.capitalize(), message=message)
