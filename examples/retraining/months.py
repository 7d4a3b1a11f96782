"""The flights of 2013 as one Parquet file a month, as a data team would deliver them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from examples.flights.data import csv_path

COLUMNS = ("year", "month", "day", "carrier", "origin", "dest", "sched_dep_time", "distance", "dep_delay", "arr_delay")


def month_of(month: int) -> pd.DataFrame:
    """Flights of a month that arrived."""
    frame = pd.read_csv(csv_path(), usecols=list(COLUMNS))[list(COLUMNS)]
    return frame[(frame["month"] == month) & frame["arr_delay"].notna()].reset_index(drop=True)


def write_month(frame: pd.DataFrame, month: int, folder: Path) -> Path:
    """Write a month's file as a whole: a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"flights-2013-{month:02}.parquet"
    partial = path.with_suffix(".partial")
    frame.to_parquet(partial)
    return partial.rename(path)


def spoiled(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows after a faulty export: a tenth of the delays is missing, and two columns hold each other's data."""
    bad = frame.copy()
    bad.loc[::10, "dep_delay"] = None
    bad["sched_dep_time"], bad["distance"] = frame["distance"], frame["sched_dep_time"]
    return bad


def deliver(month: int, folder: Path, is_spoiled: bool) -> Path:
    """Write the file of a month into a folder, as it is or after a faulty export."""
    frame = month_of(month)
    return write_month(spoiled(frame) if is_spoiled else frame, month, folder)
