"""The state of a run's parent in the Prefect UI, from the decision that ended the run."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed
from segue.tasks.state_words import Word, state_with

from segue.units import duration

_WORDS = {"broken": Word.BROKEN, "hopeless": Word.HOPELESS, "budget": Word.OUT_OF_BUDGET}
"""The words of decisions that end a run without its goal; a recipe that failed has none."""


def state_of_run(action: str, message: str, *, late_seconds: float | None = None) -> State[Any]:
    """Completed for a run that reached its goal in time, Cancelled if a person stopped it, else Failed.

    A run that reached its goal after its deadline is Failed too, because lists show the type of a state and no message;
    the message says that the goal is reached, and how late it was.
    """
    if action == "finished" and late_seconds is not None:
        if late_seconds > 0:
            return state_with(Word.LATE, f"{duration(late_seconds)} after the deadline; {message}")
        return Completed(message=f"on time by {duration(-late_seconds)}; {message}")
    if action == "finished":
        return Completed(message=message)
    if action in ("stopped", "cancelled"):
        return Cancelled(message=message)
    word = _WORDS.get(action)
    return state_with(word, message) if word is not None else Failed(message=message)
