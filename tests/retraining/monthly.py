"""A folder with monthly files and a retrain.toml, for tests of scheduled retraining."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import toml

from segue.retraining.history import Models
from segue.retraining.models import ModelsLog
from segue.retraining.spec import RetrainSpec
from segue.stores import open_store
from segue.stores.local import MARKER
from tests.support.forked_trainers import ForkServer

EXPECTATIONS = [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "y"}}]


def slot_of_month(month: int) -> datetime:
    """The slot on the first day of a month of 2013, at six."""
    return datetime(2013, month, 1, 6, tzinfo=UTC)


class Monthly:
    """A data lake in a folder, with a schedule that trains on the two months before the newest, and evaluates on it."""

    trainers: ForkServer
    """Starts the trainers of its slots, where a test has one."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.folder = folder
        self.file = folder / "retrain.toml"
        self.store_folder = folder / "store"
        (folder / "expectations").mkdir(parents=True)
        (folder / "expectations/points.json").write_text(json.dumps({"name": "points", "expectations": EXPECTATIONS}))
        self._always = fields
        self.write_spec()

    def write_spec(self, **fields: Any) -> None:
        """Write retrain.toml; tables are merged with the usual ones."""
        usual: dict[str, Any] = {
            "name": "points",
            "schedule": "0 6 1 * *",
            "data": {"files": f"{self.folder}/%Y-%m.parquet", "period": "month", "periods": 2},
            "gate": {"suite": "expectations/points.json"},
            "publish": {"model": "tests.recipes.monthly:model"},
            "evaluation": {"scores": "tests.recipes.monthly:scores"},
            "run": {
                "recipe": "tests.recipes.monthly:build",
                "steps": 40,
                "threads": 1,
                "store": {"url": str(self.store_folder)},
                "checkpoints": {"every_steps": 10},
                "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 10},
                "continuity": {"rehearsal": "off"},
            },
        }
        for name, value in (self._always | fields).items():
            there = usual.get(name)
            usual[name] = _given(there | value) if isinstance(there, dict) and isinstance(value, dict) else value
        self.file.write_text(toml.dumps(_given(usual)))

    def write(self, *months: int, slope: float = 2.0, rows: int = 200, nulls: int = 0) -> None:
        """Write the files of months: points near a line of this slope through the origin."""
        for month in months:
            random = np.random.default_rng(month)
            x = random.uniform(-1, 1, rows)
            y = slope * x + random.normal(0, 0.1, rows)
            y[:nulls] = np.nan
            pd.DataFrame({"x": x, "y": y}).to_parquet(self.folder / f"2013-{month:02}.parquet")

    @property
    def spec(self) -> RetrainSpec:
        return RetrainSpec.from_toml(self.file)

    @property
    def has_store(self) -> bool:
        """Whether the store was created: for a moment there is a folder that is none yet."""
        return (self.store_folder / MARKER).exists()

    @property
    def log(self) -> ModelsLog:
        return ModelsLog(open_store(self.store_folder), self.spec.name)

    @property
    def models(self) -> Models:
        return self.log.read()


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    return {name: value for name, value in fields.items() if value is not None}
