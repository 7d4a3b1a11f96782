"""What is expected of a run's loss curve, checked by Great Expectations.

Ranges of loss values let a threefold jump and a gap of three rows pass. So the expectations are of derived frames: the
distance between steps, and every step that is on record more than once (`segue.curves.repeated_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.curves.frame import curve_frame
from segue.curves.great_expectations import Expected, Outcome, validate
from segue.curves.repeated_steps import repeats
from segue.errors import NoCheckpointError
from segue.records import Record, Value
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE, find_run
from segue.spec import StoreSpec

if TYPE_CHECKING:
    import pandas as pd

Schedule = Callable[[int], float]
"""The learning rate that a step is to be done with; steps count from 1."""

SCHEDULE_TOLERANCE = 1e-6
"""Relative: a scheduler that multiplies its way along differs by rounding from a formula."""

_MOST_NAMED = 6


class Met(Value):
    """One expectation of a loss curve and what became of it."""

    name: str
    outcome: Literal["met", "failed", "not measured"]
    observed: str = Field(description="What Great Expectations found, in short.")
    steps: tuple[int, ...] = Field((), description="The first steps at which it failed, where it is about steps.")
    sentence: str = Field(description="What that means, and what to do if it failed.")


class CurveReport(Record):
    """What a check of a loss curve found."""

    run_id: str
    first_step: int = Field(description="The step after the weights the run began with.")
    last_step: int = Field(description="The newest committed step; the curve is checked up to it.")
    rows: int = Field(ge=0, description="Rows of accepted attempts, one a step if all is well.")
    repeated_rows: int = Field(ge=0, description="Further records of the same steps that were compared with them.")
    expectations: tuple[Met, ...]
    docs: str | None = Field(None, description="The Data Docs' index.html, if they were asked for.")
    seconds: float

    @property
    def failed(self) -> tuple[Met, ...]:
        return tuple(item for item in self.expectations if item.outcome == "failed")

    @property
    def passed(self) -> bool:
        """Nothing failed. What was not measured is not in it: see `expectations`."""
        return not self.failed

    @property
    def sentence(self) -> str:
        """What came of it, in one line."""
        failed = f"{len(self.failed)} of {len(self.expectations)} expectations failed"
        return (
            f"{self.run_id}: {failed if self.failed else 'nothing failed'} in steps {self.first_step} to "
            f"{self.last_step}; {self.repeated_rows} records of steps done or recorded again were compared"
        )


class _Promise(NamedTuple):
    expected: Expected
    fix: str


def check_curve(
    run: RunLog | str,
    *,
    store: StoreSpec | str | Path = DEFAULT_STORE,
    schedule: Schedule | None = None,
    docs: Path | None = None,
    clock: Clock | None = None,
) -> CurveReport:
    """Check a run's loss curve up to its newest checkpoint; with `docs`, write Data Docs there. The run is only read.

    `run` is a run's log, or a run id to be found in `store`. Without a `schedule`, learning rates are compared only
    where a step is on record more than once.

    Raises:
        RunNotFoundError, StoreUnreachableError: as `segue.curve`.
        NoCheckpointError: nothing is committed, so no step is accepted yet.
        MissingExtraError: pandas or great-expectations is not installed.
        OutputError: `docs` cannot be written.
    """
    log, history = find_run(run, store) if isinstance(run, str) else (run, read_history(run.reload()))
    frame = curve_frame(log, history)
    return check_frame(frame, history, run_id=log.run_id, schedule=schedule, docs=docs, clock=clock)


def check_frame(
    frame: pd.DataFrame,
    history: History,
    *,
    run_id: str,
    schedule: Schedule | None = None,
    docs: Path | None = None,
    clock: Clock | None = None,
) -> CurveReport:
    """`check_curve` for a frame that `segue.curves.frame.curve_frame` gave, with its column `superseded`."""
    clock = clock or SystemClock()
    started_at = clock.monotonic()
    first, last = _span(history, run_id=run_id)
    steps, again = _steps(frame, first=first, schedule=schedule), repeats(frame, history)
    of_steps, of_repeats = _of_steps(last - first + 1, has_schedule=schedule is not None), _of_repeats()
    measured = [promise for promise in of_repeats if _is_measured(promise, again)]
    frames = {"steps": (steps, [promise.expected for promise in of_steps])}
    if measured:
        frames["repeats"] = (again, [promise.expected for promise in measured])
    outcomes = validate(frames, run_id=run_id, docs=docs)
    return CurveReport(
        run_id=run_id,
        first_step=first,
        last_step=last,
        rows=len(steps),
        repeated_rows=len(again),
        expectations=tuple(_met(promise, outcomes) for promise in (*of_steps, *of_repeats)),
        docs=str((docs / "index.html").absolute()) if docs is not None else None,
        seconds=round(clock.monotonic() - started_at, 2),
    )


def _span(history: History, *, run_id: str) -> tuple[int, int]:
    """First and last step that must have a row: by the log, for a curve cannot tell what it lacks at its ends."""
    newest = root = history.newest
    if newest is None:
        raise NoCheckpointError(run_id=run_id)
    while root is not None and root.manifest.parent is not None:
        root = history.checkpoint(root.manifest.parent)
    is_import = root is not None and root.manifest.imported_from is not None
    return (root.manifest.step if is_import and root is not None else 0) + 1, newest.manifest.step


def _steps(frame: pd.DataFrame, *, first: int, schedule: Schedule | None) -> pd.DataFrame:
    accepted = frame[~frame["superseded"]].sort_values("step", kind="stable", ignore_index=True)
    columns = ["run", "segment", "attempt", "attempt_id", "step", "loss", "lr"]
    steps = accepted[columns].copy()
    steps["gap"] = steps["step"].diff().fillna(steps["step"] - (first - 1)).astype("int64")
    steps["loss_is_finite"] = steps["loss"].map(math.isfinite).astype("int64")
    steps["attempts_of_step"] = steps.groupby("step")["attempt_id"].transform("nunique").astype("int64")
    if schedule is not None:
        planned = [schedule(int(step)) for step in steps["step"]]
        steps["lr_planned"] = planned
        pairs = zip(steps["lr"], planned, strict=True)
        steps["lr_is_planned"] = [int(math.isclose(lr, plan, rel_tol=SCHEDULE_TOLERANCE)) for lr, plan in pairs]
    return steps


def _of_steps(count: int, *, has_schedule: bool) -> list[_Promise]:
    lost_part = "A file of the curve is missing or unreadable, or rows were added; the log of the command names it."
    promises = [
        _Promise(_rows(count), lost_part),
        _Promise(_only_ones("contiguous steps", "gap", "Each step is one more than the step before it"), lost_part),
        _Promise(
            Expected(
                "unique keys",
                "ExpectCompoundColumnsToBeUnique",
                {"column_list": ["run", "segment", "attempt", "step"]},
                "No attempt tells of a step twice",
            ),
            "A row was written twice; read the run's own files under metrics/, not copies beside them.",
        ),
        _Promise(
            _only_ones("one accepted attempt", "attempts_of_step", "Each step is accepted from one attempt only"),
            "Two attempts are taken for the same steps; compare the log's commits with `segue checkpoints`.",
        ),
        _Promise(
            _only_ones("finite loss", "loss_is_finite", "The loss is a finite number"),
            "Go back to a checkpoint before that step, and look at its batch, the learning rate and the loss scale.",
        ),
    ]
    if has_schedule:
        promises.append(
            _Promise(
                _only_ones("learning rate as planned", "lr_is_planned", "The learning rate is the schedule's"),
                "Look at the scheduler's state, and at who else sets the optimizer's learning rate.",
            )
        )
    return promises


def _of_repeats() -> list[_Promise]:
    same_rate = Expected(
        "learning rate repeats",
        "ExpectColumnPairValuesToBeEqual",
        {"column_A": "lr", "column_B": "lr_before"},
        "A step that was done or recorded again had the same learning rate",
    )
    causes = {
        "loss": "Weights, a random stream, the data or the code were others after the resume",
        "grad_norm": "The gradient was another one: the loss or clipping code changed",
        "param_norm": "The update was another one: the optimizer's state or settings changed",
    }
    return [
        _Promise(same_rate, "The scheduler or the optimizer's groups were not restored; see the verdict."),
        *(
            _Promise(
                _within(channel), f"{cause}. `segue curve resume` shows it; the verdict names the component."
            )
            for channel, cause in causes.items()
        ),
    ]


def _rows(count: int) -> Expected:
    promise = "There are as many rows as steps, from the first to the newest committed one"
    return Expected("as many rows as steps", "ExpectTableRowCountToEqual", {"value": count}, promise)


def _only_ones(name: str, column: str, promise: str) -> Expected:
    return Expected(name, "ExpectColumnValuesToBeInSet", {"column": column, "value_set": [1]}, promise)


def _within(channel: str) -> Expected:
    return Expected(
        f"{channel} repeats",
        "ExpectColumnPairValuesAToBeGreaterThanB",
        {"column_A": f"{channel}_allowed", "column_B": f"{channel}_difference", "or_equal": True},
        f"A step that was done or recorded again had the same {channel}: exactly, or within the verdict's tolerance "
        "where the environment changed",
    )


def _is_measured(promise: _Promise, again: pd.DataFrame) -> bool:
    limit = promise.expected.arguments["column_A"]
    return bool(len(again)) and (limit == "lr" or bool(again[limit].map(math.isfinite).any()))


def _met(promise: _Promise, outcomes: dict[str, Outcome]) -> Met:
    expected, found = promise.expected, outcomes.get(promise.expected.name)
    facts: dict[str, Any] = {"name": expected.name}
    if found is None:
        why = "no step is on record twice in a way that could be compared; not measured is not passed"
        return Met(**facts, outcome="not measured", observed="nothing", sentence=f"{expected.promise}: {why}.")
    if found.met:
        return Met(**facts, outcome="met", observed=found.observed, sentence=f"{expected.promise}.")
    sentence = f"Not so: {expected.promise[0].lower()}{expected.promise[1:]}{_at(found.steps)}. {promise.fix}"
    return Met(**facts, outcome="failed", observed=found.observed, steps=found.steps, sentence=sentence)


def _at(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    named = ", ".join(map(str, steps[:_MOST_NAMED]))
    return f" (step {named}{', ...' if len(steps) > _MOST_NAMED else ''})"
