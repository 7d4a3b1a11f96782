"""Returns the loss curve of a run as one pandas frame with one row for each step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from segue.errors import MissingExtraError, MissingObjectError, RunNotFoundError
from segue.records import CheckpointRef
from segue.runlog import keys
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE, find_run
from segue.spec import StoreSpec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

log = logging.getLogger(__name__)

NEW_START, NOT_REACHED = "first", "not reached"
"""Values of the column `verdict`: for an attempt that did not resume, and for an attempt without a verdict."""


def curve(
    run: RunLog | str, *, store: StoreSpec | str | Path = DEFAULT_STORE, superseded: bool = False
) -> pd.DataFrame:
    """Return the steps of all attempts in order, with the columns of `segue.curves.schema.SCHEMA` and `verdict`.

    Each other metric of a program has a column `metric.<name>`, with NaN at steps without the metric. `run` is a run's
    log, or a run id in `store`. If a step was lost and executed again, its row comes from the attempt that the run
    continued. If `superseded` is true, the frame also contains the rows of lost steps, with True in the column
    `superseded`. The column `verdict` contains the kind of verdict on the attempt's resume. The value is "first" if the
    attempt did not resume, and "not reached" if it has no verdict.

    If a file of the curve cannot be read, the log has a warning, and `segue curve check` names the gap.

    Raises:
        RunNotFoundError: the store has no such run.
        StoreUnreachableError: the store cannot be read.
        MissingExtraError: pandas is not installed.
    """
    runlog, history = opened(run, store)
    frame = curve_frame(runlog, history)
    return frame if superseded else frame[~frame["superseded"]].drop(columns="superseded").reset_index(drop=True)


def curve_frame(runlog: RunLog, history: History) -> pd.DataFrame:
    """Return the frame of `curve` with superseded steps, as of `history`.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas  # noqa: F401 - pyarrow would fail later, without naming the extra
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="The loss curve as a frame") from None
    frame: pd.DataFrame = _stored_rows(runlog).to_pandas()
    attempts = frame["attempt_id"]
    environments = {a.claim.attempt_id: a.claim.environment.short_id for a in history.attempts}
    starts = {attempt: parent.step for attempt, parent in parents_of(history).items()}
    # Older files lack these two columns, but the log has the values.
    frame["environment"] = frame["environment"].fillna(attempts.map(environments))
    frame["from_checkpoint"] = frame["from_checkpoint"].fillna(attempts.map(starts)).fillna(0).astype("int64")
    verdicts = {a.claim.attempt_id: a.verdict.kind.value for a in history.attempts if a.verdict is not None}
    without = frame["from_checkpoint"].map(lambda step: NOT_REACHED if step else NEW_START)
    frame["verdict"] = attempts.map(verdicts).astype("object").fillna(without).astype("str")
    spans = steps_of_lineage(history)
    after = attempts.map({attempt: span[0] for attempt, span in spans.items()}).fillna(0).astype("int64")
    to = attempts.map({attempt: span[1] for attempt, span in spans.items()}).fillna(0).astype("int64")
    frame["superseded"] = ~((after < frame["step"]) & (frame["step"] <= to))
    return frame.sort_values(["step", "segment", "attempt"], ignore_index=True)


def steps_of_lineage(history: History) -> dict[str, tuple[int, int]]:
    """Return the step before the first step, and the last step, of each attempt in the newest checkpoint's lineage."""
    spans: dict[str, tuple[int, int]] = {}
    checkpoint = history.newest
    while checkpoint is not None:
        parent = checkpoint.manifest.parent
        spans[checkpoint.ref.attempt_id] = (parent.step if parent else 0, checkpoint.manifest.step)
        checkpoint = history.checkpoint(parent) if parent else None
    return spans


def parents_of(history: History) -> dict[str, CheckpointRef]:
    """Return the checkpoint from which each attempt resumed, for all attempts that resumed."""
    judged = {entry.attempt_id: entry.parent for entry in history.resumes}
    committed = {c.ref.attempt_id: c.manifest.parent for c in history.checkpoints if c.manifest.parent is not None}
    return judged | committed


def opened(run: RunLog | str, store: StoreSpec | str | Path) -> tuple[RunLog, History]:
    """Return the log and the history of a run. `run` is the run's log or the run's id.

    Raises:
        RunNotFoundError: the store has no such run.
        StoreUnreachableError: the store cannot be read.
    """
    if isinstance(run, str):
        return find_run(run, store)
    history = read_history(run.reload())
    if history.next_slot == 0:
        raise RunNotFoundError(run_id=run.run_id, store=run.store.url, known=tuple(run.store.folders()))
    return run, history


def stored_tables(runlog: RunLog, *, of_attempts: Iterable[str] = ("",)) -> Iterator[pa.Table]:
    """Yield the tables of the stored files that may have rows of these attempts.

    The tables have the columns of `SCHEMA` and of the metrics. If a file cannot be read, the function skips the file,
    and logs a warning.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from segue.curves.curve_rows import METRIC_PREFIX
    from segue.curves.schema import SCHEMA

    prefix = keys.metrics_prefix(runlog.run_id)
    starts = tuple(keys.metrics_of_attempt(runlog.run_id, attempt) if attempt else prefix for attempt in of_attempts)
    found = [item.key for item in runlog.store.list_objects(prefix)]
    for key in found:
        if not key.endswith(".parquet") or not key.startswith(starts):
            continue
        try:
            table = pq.read_table(pa.BufferReader(runlog.store.get(key)))
            whole = pa.concat_tables([SCHEMA.empty_table(), table], promote_options="default")
            own = [name for name in whole.column_names if name.startswith(METRIC_PREFIX)]
            yield whole.select([*SCHEMA.names, *own])
        except (MissingObjectError, pa.ArrowException, OSError) as error:
            log.warning("loss curve file left out key=%s reason=%s", key, error)


def _stored_rows(runlog: RunLog) -> pa.Table:
    import pyarrow as pa

    from segue.curves.schema import SCHEMA

    return pa.concat_tables([SCHEMA.empty_table(), *stored_tables(runlog)], promote_options="default")
