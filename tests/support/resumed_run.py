"""A real run with a resume point and with superseded steps, for the tests of its curve."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from segue.checkpoints.loading.quarantine import quarantine
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.curves.frame import curve_frame
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from tests.support.forked_trainers import ForkServer


class Resumed(NamedTuple):
    """A first attempt that committed 10, 20 and 30; 30 was set aside, and a second one went on from 20 to 60."""

    store: Path
    log: RunLog
    history: History

    def frame(self) -> pd.DataFrame:
        return curve_frame(self.log, self.history)

    def copy(self, store: Path) -> Resumed:
        """The same run in a store that the test may damage."""
        return read_resumed(Path(shutil.copytree(self.store, store)))


def read_resumed(store: Path) -> Resumed:
    log = RunLog(open_store(store), "nightly").reload()
    return Resumed(store, log, read_history(log))


def train(fork_server: ForkServer, store: Path) -> Resumed:
    spec = RunSpec.parse(
        {
            "run_id": "nightly",
            "recipe": "segue.testing.recipes:tiny",
            "steps": 60,
            "config": {"pause_seconds": 0.04},  # So that each save is over before the one after the next is due.
            "threads": 1,
            "store": {"url": str(store)},
            "checkpoints": {"every_steps": 10, "staging_buffers": 2},
            "liveness": {"heartbeat_seconds": 0.05},
        }
    )
    log = open_run(spec, clock=SystemClock())
    fork_server.run_attempt(log, spec.model_copy(update={"steps": 30}))
    doubted = read_history(log).newest
    assert doubted is not None
    assert doubted.ref.step == 30
    quarantine(log, checkpoint=doubted, reason="a person doubted it", epoch=log.highest_epoch)
    fork_server.run_attempt(log, spec)
    found = read_resumed(store)
    assert found.history.committed_step == 60
    return found
