"""Defines the expectations for a run's loss curve, which Great Expectations checks.

A check of the range of the loss would not detect a threefold jump or a gap of three rows. Therefore the expectations
examine derived frames: the differences between consecutive steps, and the steps with several records
(`segue.curves.repeated_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.curves.curve_damage import damaged_parts, has_digests
from segue.curves.frame import curve_frame, opened
from segue.curves.great_expectations import Expected, Validation, validate
from segue.curves.repeated_steps import repeats
from segue.errors import NoCheckpointError
from segue.markup import blocks, table
from segue.records import Record, Value
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE
from segue.spec import StoreSpec

if TYPE_CHECKING:
    import pandas as pd

Schedule = Callable[[int], float]
"""A function that returns the planned learning rate of a step. The first step has the number 1."""

SCHEDULE_TOLERANCE = 1e-6
"""Permitted relative difference between a planned and a recorded learning rate.

A scheduler that multiplies the rate at each step rounds differently from a formula.
"""

_MOST_NAMED = 6


class Met(Value):
    """One expectation for a loss curve, with its outcome."""

    name: str
    outcome: Literal["met", "failed", "not measured"]
    observed: str = Field(description="Short text about the observed values.")
    steps: tuple[int, ...] = Field((), description="First steps that violate an expectation about steps.")
    sentence: str = Field(description="The outcome in words, with a fix after a failure.")


class CurveReport(Record):
    """The result of a check of a loss curve."""

    run_id: str
    first_step: int = Field(description="First step of the run, or first step after an import or fork.")
    last_step: int = Field(description="Newest committed step, which is the last step of the check.")
    rows: int = Field(ge=0, description="Number of rows of accepted attempts, one for each step.")
    repeated_rows: int = Field(ge=0, description="Number of additional records of these steps.")
    expectations: tuple[Met, ...]
    docs: str | None = Field(None, description="Path of the Data Docs' index.html, if requested.")
    seconds: float

    @property
    def failed(self) -> tuple[Met, ...]:
        return tuple(item for item in self.expectations if item.outcome == "failed")

    @property
    def passed(self) -> bool:
        """Whether no expectation failed. `expectations` shows which expectations were not measured."""
        return not self.failed

    @property
    def sentence(self) -> str:
        """A sentence with the result of the check."""
        failed = f"{len(self.failed)} of {len(self.expectations)} expectations failed"
        return (
            f"{self.run_id}: {failed if self.failed else 'nothing failed'} in steps {self.first_step} to "
            f"{self.last_step}; {self.repeated_rows} repeated records were compared"
        )

    def in_markdown(self) -> str:
        """Return the result of the check and a table of the expectations, as markdown."""
        rows = [(item.name, item.outcome, item.sentence) for item in self.expectations]
        return blocks(self.sentence, table(("expectation", "outcome", "meaning"), rows))


class _Check(NamedTuple):
    """An expectation, with the texts that a failure shows."""

    expected: Expected
    violation: str
    fix: str


def check_curve(
    run: RunLog | str,
    *,
    store: StoreSpec | str | Path = DEFAULT_STORE,
    schedule: Schedule | None = None,
    docs: Path | None = None,
    clock: Clock | None = None,
) -> CurveReport:
    """Check a run's loss curve up to the run's newest checkpoint. If `docs` is given, write Data Docs into that folder.

    The function only reads the run. `run` is a run's log, or a run id in `store`. If `schedule` is None, the check
    compares learning rates only between records of the same step.

    Raises:
        RunNotFoundError, StoreUnreachableError: the run or the store does not exist, as for `segue.curve`.
        NoCheckpointError: the run has no committed step.
        MissingExtraError: pandas or great-expectations is not installed.
        OutputError: `docs` cannot be written.
    """
    log, history = opened(run, store)
    frame = curve_frame(log, history)
    report = check_frame(frame, history, run_id=log.run_id, schedule=schedule, docs=docs, clock=clock)
    return report.model_copy(update={"expectations": (_as_committed(log, history), *report.expectations)})


def check_frame(
    frame: pd.DataFrame,
    history: History,
    *,
    run_id: str,
    schedule: Schedule | None = None,
    docs: Path | None = None,
    clock: Clock | None = None,
) -> CurveReport:
    """Check a frame from `segue.curves.frame.curve_frame` as `check_curve` checks a run."""
    clock = clock or SystemClock()
    started_at = clock.monotonic()
    first, last = _span(history, run_id=run_id)
    steps, again = _steps(frame, first=first, schedule=schedule), repeats(frame, history)
    of_steps, of_repeats = _of_steps(last - first + 1, has_schedule=schedule is not None), _of_repeats()
    measured = [check for check in of_repeats if _is_measured(check, again)]
    frames = {"steps": (steps, [check.expected for check in of_steps])}
    if measured:
        frames["repeats"] = (again, [check.expected for check in measured])
    outcomes = validate(frames, run_id=run_id, docs=docs)
    return CurveReport(
        run_id=run_id,
        first_step=first,
        last_step=last,
        rows=len(steps),
        repeated_rows=len(again),
        expectations=tuple(_met(check, outcomes) for check in (*of_steps, *of_repeats)),
        docs=str((docs / "index.html").absolute()) if docs is not None else None,
        seconds=round(clock.monotonic() - started_at, 2),
    )


def _span(history: History, *, run_id: str) -> tuple[int, int]:
    """Return the first and the last step that must have a row.

    The steps come from the log, because rows may be missing at both ends of the curve.
    """
    newest = root = history.newest
    if newest is None:
        raise NoCheckpointError(run_id=run_id)
    while root is not None and root.manifest.parent is not None:
        root = history.checkpoint(root.manifest.parent)
    has_begun_elsewhere = root is not None and root.manifest.origin is not None
    return (root.manifest.step if has_begun_elsewhere and root is not None else 0) + 1, newest.manifest.step


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


def _of_steps(count: int, *, has_schedule: bool) -> list[_Check]:
    find_rows = "Find the missing or added file; the log of this command names files that cannot be read."
    keys = ["run", "segment", "attempt", "step"]
    checks = [
        _Check(
            Expected(
                "as many rows as steps",
                "ExpectTableRowCountToEqual",
                {"value": count},
                "The curve has one row for each step from the first to the newest committed one",
            ),
            f"the curve does not have {count} rows, one for each committed step",
            find_rows,
        ),
        _Check(
            _only_ones("contiguous steps", "gap", "Each step is one more than the step before it"),
            "steps are missing or repeated",
            find_rows,
        ),
        _Check(
            Expected(
                "unique keys",
                "ExpectCompoundColumnsToBeUnique",
                {"column_list": keys},
                "No attempt has two rows of one step",
            ),
            "an attempt has two rows of one step",
            "Remove copies of the run's files under metrics/; each attempt writes a step once.",
        ),
        _Check(
            _only_ones("one accepted attempt", "attempts_of_step", "Each step is accepted from one attempt only"),
            "steps are accepted from two attempts",
            "Compare the commits of both attempts with `segue checkpoints RUN`.",
        ),
        _Check(
            _only_ones("finite loss", "loss_is_finite", "The loss is a finite number"),
            "the loss is not finite",
            "Go back to a checkpoint before that step; check its batch, the learning rate and the loss scale.",
        ),
    ]
    if has_schedule:
        checks.append(
            _Check(
                _only_ones("learning rate as planned", "lr_is_planned", "The learning rate is that of the schedule"),
                "the learning rate is not that of the schedule",
                "Check the scheduler's state, and other code that sets the optimizer's learning rate.",
            )
        )
    return checks


_REPEATED = {
    "loss": ("losses", "weights, a random stream, the data or the code changed"),
    "grad_norm": ("gradient norms", "the loss or clipping code changed"),
    "param_norm": ("parameter norms", "the optimizer's state or settings changed"),
}
"""Maps each channel to its plural, and to the likely cause of a difference at a repeated step."""


def _of_repeats() -> list[_Check]:
    same_rate = _Check(
        Expected(
            "learning rate repeats",
            "ExpectColumnPairValuesToBeEqual",
            {"column_A": "lr", "column_B": "lr_before"},
            "Steps executed twice have equal learning rates",
        ),
        "steps executed twice have different learning rates",
        "Check that the scheduler and the optimizer's param_groups were restored; the verdict names the component.",
    )
    return [same_rate, *(_repeats(channel, *words) for channel, words in _REPEATED.items())]


def _repeats(channel: str, plural: str, cause: str) -> _Check:
    return _Check(
        Expected(
            f"{channel} repeats",
            "ExpectColumnPairValuesAToBeGreaterThanB",
            {"column_A": f"{channel}_allowed", "column_B": f"{channel}_difference", "or_equal": True},
            f"Steps executed twice have equal {plural}, within the verdict's tolerance if the environment changed",
        ),
        f"steps executed twice have different {plural}",
        f"Likely cause: {cause}. `segue curve resume` plots them; the verdict names the component.",
    )


def _only_ones(name: str, column: str, promise: str) -> Expected:
    return Expected(name, "ExpectColumnValuesToBeInSet", {"column": column, "value_set": [1]}, promise)


def _is_measured(check: _Check, again: pd.DataFrame) -> bool:
    limit = check.expected.arguments["column_A"]
    return bool(len(again)) and (limit == "lr" or bool(again[limit].map(math.isfinite).any()))


def _met(check: _Check, outcomes: dict[str, Validation]) -> Met:
    expected, found = check.expected, outcomes.get(check.expected.name)
    facts: dict[str, Any] = {"name": expected.name}
    if found is None:
        why = "not measured, so not passed: no step has two records to compare"
        return Met(**facts, outcome="not measured", observed="nothing", sentence=f"{expected.promise}: {why}.")
    if found.met:
        return Met(**facts, outcome="met", observed=found.observed, sentence=f"{expected.promise}.")
    sentence = f"FAILED: {check.violation}{_at(found.steps)}. {check.fix}"
    return Met(**facts, outcome="failed", observed=found.observed, steps=found.steps, sentence=sentence)


def _as_committed(log: RunLog, history: History) -> Met:
    """Compare the stored files with the digests in the manifests, which are signed if the log is signed."""
    facts = {"name": "files as committed"}
    promise = "Each file has the rows that the manifests of the checkpoints name"
    if not has_digests(history):
        why = "not measured, so not passed: the manifests of an older version name no files"
        return Met(**facts, outcome="not measured", observed="nothing", sentence=f"{promise}: {why}.")
    damaged = damaged_parts(log, history)
    if not damaged:
        return Met(**facts, outcome="met", observed="as expected", sentence=f"{promise}.")
    sentence = f"FAILED: {damaged[0].sentence}. Restore this file from the bucket's versions or from a backup."
    return Met(**facts, outcome="failed", observed=f"damaged files: {len(damaged)}", sentence=sentence)


def _at(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    others = ", ".join(map(str, steps[1:_MOST_NAMED]))
    more = ", ..." if len(steps) > _MOST_NAMED else ""
    return f" (first: step {steps[0]}{f'; also {others}{more}' if others else ''})"
