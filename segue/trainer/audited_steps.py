"""The steps that an audit replays, with everything that the store has recorded about these steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segue.continuity.differences import FLOATS
from segue.curves.committed import CommittedRows
from segue.curves.frame import steps_of_lineage
from segue.errors import AuditImpossibleError, NoCheckpointError
from segue.records import WitnessRow
from segue.runlog.history import Attempt, Checkpoint, History
from segue.runlog.log import RunLog


@dataclass(frozen=True)
class AuditedInterval:
    """Consecutive steps after a checkpoint."""

    start: Checkpoint
    to_step: int
    commits: tuple[Checkpoint, ...]
    """The commits after the start, up to the last step. An audit needs only the digests of these commits, so their
    bytes may be pruned."""
    witness: Mapping[int, WitnessRow]
    """The witness rows, by step."""
    curve: Mapping[int, Mapping[str, float]]
    """The loss and the measured norms in the loss curve, by step."""
    attempts: Mapping[int, Attempt]
    """The attempt that trained each step."""

    @property
    def watched(self) -> tuple[int, ...]:
        """The steps after which the run's log has state marks or digests of the whole state."""
        marked = {step for step, row in self.witness.items() if row.state is not None}
        return tuple(sorted(marked | {commit.manifest.step for commit in self.commits}))

    def recorded(self, replayed: Sequence[WitnessRow]) -> tuple[WitnessRow, ...]:
        """Return the recorded rows of the replayed steps. If a recorded row lacks a value, use the value of the
        replay."""
        return tuple(
            self.witness.get(row.step, row).model_copy(update=dict(self.curve.get(row.step, {})))
            for row in replayed
            if row.step in self.witness or row.step in self.curve
        )


def interval_of(runlog: RunLog, history: History, *, start: Checkpoint | None, steps: int | None) -> AuditedInterval:
    """Return `steps` steps after the checkpoint `start`.

    If `start` is None, the steps begin at the second-newest usable checkpoint. If `steps` is None, the steps end at the
    next usable checkpoint. Without a next checkpoint, the steps end with the last witness row of the newest checkpoint.

    Raises:
        AuditImpossibleError: no step after the checkpoint is recorded.
        NoCheckpointError: the run has no checkpoint.
        StoreReadError: the store could not be read.
    """
    spans = steps_of_lineage(history)
    lineage = [c for c in history.checkpoints if c.manifest.step in _steps(spans.get(c.ref.attempt_id, (0, -1)))]
    usable = [c for c in lineage if c in history.usable]
    if not usable:
        raise NoCheckpointError(run_id=runlog.run_id)
    start, newest = start or usable[-2:][0], usable[-1]
    begin = start.manifest.step
    owners = {step: name for name, span in spans.items() for step in _steps(span)}
    owners |= {row.step: newest.ref.attempt_id for row in newest.rows}
    last = max(owners)
    following = [c.manifest.step for c in usable if c.manifest.step > begin]
    to_step = min(begin + steps if steps is not None else min(following, default=last), last)
    if start not in usable or to_step <= begin:
        others = ", ".join(str(c.manifest.step) for c in usable[:-1])
        repeat = "repeat the command after the next commit of the run"
        if history.is_over:
            repeat = "set checkpoints.every_steps for the next run, so that it keeps a checkpoint before the last one"
        raise AuditImpossibleError(
            run_id=runlog.run_id,
            why=f"the log has no step that continues from the checkpoint of step {begin}",
            fix=f"choose --from among {others}, or {repeat}." if others else f"{repeat}.",
        )
    attempts = {step: history.attempt_named(owners.get(step)) for step in range(begin + 1, to_step + 1)}
    rows = (row for c in lineage if c.manifest.step >= begin for row in _rows_after(c, history, owners))
    curve = CommittedRows(runlog).after(begin, history)
    return AuditedInterval(
        start=start,
        to_step=to_step,
        commits=tuple(c for c in lineage if begin < c.manifest.step <= to_step),
        witness={row.step: row for row in rows if row.step in attempts},
        curve={row.step: {n: v for n, v in row.values.items() if n in FLOATS} for row in curve},
        attempts={step: attempt for step, attempt in attempts.items() if attempt is not None},
    )


def _steps(span: tuple[int, int]) -> range:
    return range(span[0], span[1] + 1)


def _rows_after(checkpoint: Checkpoint, history: History, owners: Mapping[int, str]) -> tuple[WitnessRow, ...]:
    """Return the witness rows of the attempt whose steps after the checkpoint belong to the run.

    If another attempt committed the checkpoint, the witness rows of the checkpoint itself belong to lost steps. The run
    made these steps again.
    """
    owner = owners.get(checkpoint.manifest.step + 1)
    if owner == checkpoint.ref.attempt_id:
        return checkpoint.rows
    return next((entry.replay for entry in history.resumes if entry.attempt_id == owner), ())
