"""Collects witness rows of the steps after a commit. A resume from the commit must reproduce these rows."""

from __future__ import annotations

from typing import NamedTuple

from segue.records import StateMark, WitnessRow

NORMS_EVERY_STEPS = 25
"""Number of steps between two measurements of norms. Compared steps always measure norms. Reading all weights and
gradients takes several per cent of the time of a step on a CPU."""


class StepRow(NamedTuple):
    """The results of one step. Norms that the step did not measure are None."""

    step: int
    batch_fingerprint: str
    input_fingerprint: str
    streams: dict[str, str] | None
    loss: float
    grad_norm: float | None
    param_norm: float | None
    lr: tuple[float, ...]
    loss_scale: float | None
    state: dict[str, StateMark] | None = None

    def as_witness(self) -> WitnessRow:
        """Return the row as a record. The row must have norms."""
        return WitnessRow.model_validate(self._asdict())


class Witness:
    """Collects the first `width` rows after each saved step, without delaying commits."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._windows: dict[int, list[WitnessRow]] = {}
        self._newest_full: dict[int, tuple[WitnessRow, ...]] = {}

    def open(self, step: int) -> None:
        """Start a window for the checkpoint saved at `step`."""
        self._windows[step] = []

    def wants(self, step: int) -> bool:
        """Whether a window needs the row of a step. Rows of earlier steps may still be missing."""
        return bool(self._windows) and any(
            start < step <= start + self._width and len(rows) < self._width for start, rows in self._windows.items()
        )

    def completes(self, step: int) -> bool:
        """Whether the row of a step is the last row of a window, which also has the state marks."""
        return any(step == start + self._width for start in self._windows)

    def add(self, row: StepRow) -> None:
        """Add the row of a step to every window that still needs it."""
        if not self._windows:
            return
        wanting = [rows for start, rows in self._windows.items() if self._is_next(row.step, start, rows)]
        if wanting:
            kept = row.as_witness()
            for rows in wanting:
                rows.append(kept)

    def is_full(self, step: int) -> bool:
        """Whether the window of `step` has all its rows, or does not exist."""
        return step not in self._windows or len(self._windows[step]) >= self._width

    def take_full(self) -> list[tuple[int, tuple[WitnessRow, ...]]]:
        """Return the complete windows that no earlier call returned."""
        if not self._windows:
            return []
        full = [step for step, rows in self._windows.items() if len(rows) >= self._width]
        if full:
            self._newest_full = {step: tuple(self._windows.pop(step)) for step in full}
        return list(self._newest_full.items()) if full else []

    def take_rest(self) -> list[tuple[int, tuple[WitnessRow, ...]]]:
        """Return the incomplete windows at the end of the attempt, which prove less than complete windows."""
        rest = [(step, tuple(rows)) for step, rows in self._windows.items() if rows]
        self._windows.clear()
        return rest

    def _is_next(self, step: int, start: int, rows: list[WitnessRow]) -> bool:
        return len(rows) < self._width and step == start + len(rows) + 1

    def unsealed_rows(self) -> tuple[WitnessRow, ...]:
        """Return the rows of all saves whose seal may not exist yet, in the order of steps."""
        # The dict is copied first, because the training thread changes it.
        windows = [*self._newest_full.values(), *map(tuple, list(self._windows.values()))]
        return tuple(sorted({row.step: row for rows in windows for row in rows}.values(), key=lambda row: row.step))
