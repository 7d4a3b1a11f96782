"""The state of a run's parent in the Prefect UI, from the decision that ended the run."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from segue.units import duration

LATE = "CompletedLate"
"""Name of the state of a run that reached its goal after its deadline."""
OUT_OF_BUDGET = "OutOfBudget"
"""Name of the state of a run whose money was used up before its goal."""


def state_of_run(action: str, message: str, *, late_seconds: float | None = None) -> State[Any]:
    """Completed for a run that reached its goal, Cancelled if a person stopped it, else Failed named by the action.

    The message of a finished run with a deadline begins with how late it was, or by how much it was on time.
    """
    if action == "finished" and late_seconds is not None:
        is_late = late_seconds > 0
        said = f"{'late' if is_late else 'on time'} by {duration(abs(late_seconds))}; {message}"
        return Completed(name=LATE, message=said) if is_late else Completed(message=said)
    if action == "finished":
        return Completed(message=message)
    if action in ("stopped", "cancelled"):
        return Cancelled(message=message)
    return Failed(name=OUT_OF_BUDGET if action == "budget" else action.capitalize(), message=message)
