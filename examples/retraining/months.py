"""The flights of 2013 as one Parquet file a month, as a data team would deliver them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from examples.flights.data import csv_path
from segue.data.files import file_system
from segue.spec import DataAccess

LAST_MONTH = 12
COLUMNS = ("year", "month", "day", "carrier", "origin", "dest", "sched_dep_time", "distance", "dep_delay", "arr_delay")


def month_of(month: int) -> pd.DataFrame:
    """Flights of a month that arrived."""
    frame = pd.read_csv(csv_path(), usecols=list(COLUMNS))[list(COLUMNS)]
    return frame[(frame["month"] == month) & frame["arr_delay"].notna()].reset_index(drop=True)


def write_month(frame: pd.DataFrame, month: int, place: str, access: DataAccess) -> None:
    """Write a month's file as a whole, into a folder or below a bucket's prefix: a reader never sees half of it."""
    system = file_system(place, access)
    system.makedirs(place, exist_ok=True)
    with system.transaction, system.open(f"{place}/flights-2013-{month:02}.parquet", "wb") as file:
        frame.to_parquet(file)


def spoiled(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows after a faulty export: a tenth of the delays is missing, and two columns hold each other's data."""
    bad = frame.copy()
    bad.loc[::10, "dep_delay"] = None
    bad["sched_dep_time"], bad["distance"] = frame["distance"], frame["sched_dep_time"]
    return bad


def write_month_here(month: int, folder: Path, is_spoiled: bool) -> None:
    """Write the file of a month into a folder, as it is or after a faulty export."""
    frame = month_of(month)
    write_month(spoiled(frame) if is_spoiled else frame, month, str(folder), DataAccess())
