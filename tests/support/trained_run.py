"""A real run with every kind of checkpoint, for the tests that take one elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.loading.quarantine import quarantine
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.interop.export import ExportFormat, ExportReport, write_export
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from tests.support.forked_trainers import ForkServer

WIDTH = 256


class Trained(NamedTuple):
    """A run with usable checkpoints at 10, 20 and 40, and one at 30 that is sound but was set aside."""

    store: Path
    log: RunLog
    history: History

    def checkpoint(self, step: int) -> Checkpoint:
        return next(c for c in self.history.checkpoints if c.manifest.step == step)

    def state(self, step: int) -> dict[str, Any]:
        manifest = self.checkpoint(step).manifest
        snapshot = read_checkpoint(self.log.store, run_id="tiny", manifest=manifest)
        return {name: decode_tree(skeleton, snapshot.tensors) for name, skeleton in snapshot.skeletons.items()}

    def export(
        self, folder: Path, *, step: int, file_format: ExportFormat = ExportFormat.TORCH, **more: Any
    ) -> ExportReport:
        return write_export(self.log, self.checkpoint(step), file_format=file_format, folder=folder, **more)


def read_run(store: Path) -> Trained:
    log = RunLog(open_store(store), "tiny").reload()
    return Trained(store, log, read_history(log))


def train(fork_server: ForkServer, store: Path) -> Trained:
    """Make that run: an attempt for each ten steps, and one from 20 to 40 after the checkpoint at 30 was doubted."""
    fields = {
        "run_id": "tiny",
        "recipe": "segue.testing.recipes:tiny",
        "config": {"width": WIDTH},
        "threads": 1,
        "store": {"url": str(store)},
        # Attempts commit at their ends, and only there: which steps are committed does not hang on how fast a save is.
        "checkpoints": {"every_steps": 1000, "keep": 9},
        "liveness": {"heartbeat_seconds": 0.05},
    }
    specs = {steps: RunSpec.parse(fields | {"steps": steps}) for steps in (10, 20, 30, 40)}
    runlog = open_run(specs[40], clock=SystemClock())
    for steps in (10, 20, 30):
        fork_server.run_attempt(runlog, specs[steps])
    doubted = read_history(runlog).newest
    assert doubted is not None
    quarantine(runlog, checkpoint=doubted, reason="a person doubted it", epoch=runlog.highest_epoch)
    fork_server.run_attempt(runlog, specs[40])
    found = read_run(store)
    assert [c.manifest.step for c in found.history.checkpoints] == [10, 20, 30, 40]
    assert [c.manifest.step for c in found.history.usable] == [10, 20, 40]
    return found


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
