"""Finds the steps with more than one record, and returns them as a pandas frame for the expectations.

A step has a second record in three cases: a resume replayed the step, so the witness also has the step; a seal and the
curve both have the step; or a superseded attempt also executed the step. Only steps with a second record can be
compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from segue.continuity.agreement import TOLERANCES
from segue.continuity.recipe_diff import CHANNEL, CONFIG
from segue.curves.frame import parents_of
from segue.records import CheckpointRef, Environment, VerdictKind

if TYPE_CHECKING:
    import pandas as pd

    from segue.runlog.history import History

TOLERATED_STEPS = 8
"""Number of steps after a fork for which the tolerances between different environments apply. Later steps may
diverge."""

_CHANNELS = tuple(TOLERANCES)


class _Record(NamedTuple):
    """A second record of a step that the accepted attempt `attempt_id` made."""

    attempt_id: str
    step: int
    recorded_by: str
    changes: str
    allowed: float
    """Factor on the tolerances.

    If all bits must be equal, the factor is 0. If every difference is permitted, the factor is infinite.
    """
    loss_before: float
    grad_norm_before: float
    param_norm_before: float
    lr_before: float

    @classmethod
    def of(
        cls, row: Any, lr: float, *, by: str, attempt_id: str, here: Environment, there: Environment, fork: int
    ) -> Self:
        """Make the record from a row, which is from another attempt or from a witness.

        `here` and `there` are the environments of the two records.
        """
        allowed = _allowed(here, there, steps_after_fork=row.step - fork)
        changes = ", ".join(here.differs_from(there))
        return cls(attempt_id, row.step, by, changes, allowed, row.loss, row.grad_norm, row.param_norm, lr)


def repeats(frame: pd.DataFrame, history: History) -> pd.DataFrame:
    """Compare each accepted step with every other record of the same step. The frame has one row per comparison.

    `frame` is the result of `curve_frame`. The columns are step, attempt_id, recorded_by, changes (the fields in which
    the environments differ), lr and lr_before. For each of loss, grad_norm and param_norm, four columns give the value,
    the value `_before`, their relative `_difference` and the `_allowed` difference. In equal environments, the allowed
    difference is 0. In different environments, the verdict's tolerances apply for eight steps. After these steps,
    or with another number of ranks, every difference is allowed (infinite). The learning rates must always be equal.
    After an accepted change of the recipe, the frame contains only records that the verdict found equal.
    """
    import pandas as pd

    accepted = frame[~frame["superseded"]]
    others = [*_of_seals(history, set(accepted["attempt_id"])), *_of_superseded(frame, history)]
    known = pd.DataFrame(others, columns=list(_Record._fields)).astype({"step": "int64", "attempt_id": "str"})
    found = accepted.merge(known, on=["attempt_id", "step"])
    for channel in _CHANNELS:
        pairs = zip(found[channel], found[f"{channel}_before"], strict=True)
        is_each_step = channel == "loss"
        found[f"{channel}_difference"] = [_difference(*pair, is_each_step=is_each_step) for pair in pairs]
        # No tolerance may be zero, because zero times infinity would be NaN.
        found[f"{channel}_allowed"] = found["allowed"] * TOLERANCES[channel]
    columns = ["step", "attempt_id", "recorded_by", "changes", "lr", "lr_before"]
    columns += [f"{channel}{part}" for channel in _CHANNELS for part in ("", "_before", "_difference", "_allowed")]
    return found[columns].astype(dict.fromkeys(columns[4:], "float64"))


def _of_seals(history: History, attempts: set[str]) -> Iterator[_Record]:
    environments, parents, changed = _environments(history), parents_of(history), _changed_on_purpose(history)
    for checkpoint in (c for c in history.checkpoints if c.rows):
        here, ref = checkpoint.manifest.environment, checkpoint.ref
        for attempt_id in attempts:
            if attempt_id != ref.attempt_id and (parents.get(attempt_id) != ref or attempt_id in changed):
                continue
            there = environments.get(attempt_id, here)
            for row in checkpoint.rows:
                lr = row.lr[0] if row.lr else 0.0
                by = f"witness of step {ref.step}"
                yield _Record.of(row, lr, by=by, attempt_id=attempt_id, here=here, there=there, fork=ref.step)


def _of_superseded(frame: pd.DataFrame, history: History) -> Iterator[_Record]:
    environments, parents, changed = _environments(history), parents_of(history), _changed_on_purpose(history)
    configs = {c.ref.attempt_id: c.manifest.components.get(CONFIG) for c in history.checkpoints}
    lost = frame[frame["superseded"]]
    for attempt_id in frame.loc[~frame["superseded"], "attempt_id"].unique():
        parent = parents.get(attempt_id)
        for other in lost["attempt_id"].unique():
            fork = _fork(parent, other_id=other, other_parent=parents.get(other))
            here, there = environments.get(other), environments.get(attempt_id)
            if fork is None or here is None or there is None or attempt_id in {other, *changed}:
                continue
            rows = lost[(lost["attempt_id"] == other) & (lost["step"] > fork)]
            if configs.get(other) != configs.get(attempt_id):
                # The effect of an accepted change, such as a new schedule, may appear late.
                rows = rows[rows["step"] <= fork + TOLERATED_STEPS]
            for row in rows.itertuples(index=False):
                by = f"superseded {other}"
                yield _Record.of(row, row.lr, by=by, attempt_id=attempt_id, here=here, there=there, fork=fork)


def _fork(parent: CheckpointRef | None, *, other_id: str, other_parent: CheckpointRef | None) -> int | None:
    """Return the step at which two attempts diverged. If other attempts lie between the two attempts, return None."""
    if parent == other_parent:
        return parent.step if parent is not None else 0
    return parent.step if parent is not None and parent.attempt_id == other_id else None


def _allowed(here: Environment, there: Environment, *, steps_after_fork: int) -> float:
    changes = here.differs_from(there)
    if not changes:
        return 0.0
    return math.inf if "world_size" in changes or steps_after_fork > TOLERATED_STEPS else 1.0


def _changed_on_purpose(history: History) -> set[str]:
    """Return the attempts whose verdict names different rows and an accepted change of the recipe."""
    return {
        entry.attempt_id
        for entry in history.resumes
        if entry.verdict.kind is VerdictKind.UNVERIFIED
        and any(finding.channel == CHANNEL for finding in entry.verdict.findings)
    }


def _environments(history: History) -> dict[str, Environment]:
    return {attempt.claim.attempt_id: attempt.claim.environment for attempt in history.attempts}


def _difference(after: float, before: float, *, is_each_step: bool) -> float:
    """Return the relative difference. If a norm is missing, return 0, because norms are not measured at each step."""
    if after == before or (math.isnan(after) and math.isnan(before)):
        return 0.0
    if not is_each_step and (math.isnan(after) or math.isnan(before)):
        return 0.0
    if not math.isfinite(after) or not math.isfinite(before):
        return math.inf
    return abs(after - before) / max(abs(after), abs(before))
