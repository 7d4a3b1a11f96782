"""The loss curve of a run as one pandas frame, each step once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from segue import layout
from segue.errors import MissingExtraError
from segue.history import History, read_history
from segue.runlog import RunLog

if TYPE_CHECKING:
    import pandas as pd


def curve(log: RunLog, *, superseded: bool = False) -> pd.DataFrame:
    """Steps of all attempts in order, with the columns of `segue.trainer.metrics.SCHEMA`.

    A step that was lost and done again appears once, as the attempt did it whose checkpoints the run went on from.
    With `superseded` the lost ones are there too, marked in the boolean column of that name.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="The loss curve as a frame") from None
    history = read_history(log.reload())
    listed = log.store.list_objects(layout.metrics_prefix(log.run_id))
    files = [item.key for item in listed if item.key.endswith(".parquet")]
    frames = [pd.read_parquet(io.BytesIO(log.store.get(key))) for key in files]
    if not frames:
        return pd.DataFrame()
    frame = pd.concat(frames, ignore_index=True)
    lineage = steps_of_lineage(history)
    spans = frame["attempt_id"].map(lambda attempt: lineage.get(attempt, (0, 0)))
    frame["superseded"] = [not low < step <= high for step, (low, high) in zip(frame["step"], spans, strict=True)]
    frame = frame.sort_values(["step", "segment", "attempt"], ignore_index=True)
    return frame if superseded else frame[~frame["superseded"]].drop(columns="superseded").reset_index(drop=True)


def steps_of_lineage(history: History) -> dict[str, tuple[int, int]]:
    """For each attempt the run's newest checkpoint descends from: the steps (after, to) that it contributed."""
    spans: dict[str, tuple[int, int]] = {}
    checkpoint = history.newest
    while checkpoint is not None:
        parent = checkpoint.manifest.parent
        spans[checkpoint.ref.attempt_id] = (parent.step if parent else 0, checkpoint.manifest.step)
        checkpoint = history.checkpoint(parent) if parent else None
    return spans
