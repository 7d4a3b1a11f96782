"""segue's own saver and uploader, with all parts that a run uses, from the staging area to the commit in its log."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.checkpoint.savers import State
from benchmarks.checkpoint.uploads import Bucket
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.committer import IncrementalBase, Writer
from segue.checkpoints.saving.save_job import Author, Metric, SaveJob
from segue.checkpoints.saving.staging import Staged, StagingArea
from segue.checkpoints.saving.writer_client import ProcessWriter
from segue.checkpoints.saving.written import Save, Written
from segue.clock import SystemClock
from segue.records import Environment
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import CheckpointSpec, StoreSpec
from segue.stores import LocalStore

_RUN, _ATTEMPT, _EPOCH = "bench", "seg000-a1-e1", 1
_COMPONENT = "model"
_HERE = Environment(torch=torch.__version__, device="cpu", instruction_set="", threads=1)


class OurSaver:
    """A save by segue. Durable means committed: the bytes and the index are synced, and the commit record is in the
    run's log."""

    is_background: ClassVar[bool] = True
    verifies: ClassVar[bool] = True
    note: ClassVar[str] = "Includes digests of every tensor, the index and the commit record; files and folders synced."

    def prepare(self, state: State, folder: Path) -> None:
        spec = StoreSpec(url=str(folder))
        self._folder, self._store = folder, LocalStore(folder).create()
        self._runlog = RunLog(self._store, _RUN)
        self._staging = StagingArea()
        self._staging.prepare({_COMPONENT: dict(state)})
        self._writer = Writer(
            self._runlog,
            Author(_ATTEMPT, _EPOCH, parent=None, environment=_HERE),
            shards=ProcessWriter([spec]),
            base=IncrementalBase(),
            pruner=Pruner(epoch=_EPOCH, retention=CheckpointSpec(keep=1_000_000), tiers=[self._store]),
            release=self._staging.release,
            clock=SystemClock(),
        )

    def save(self, state: State, step: int) -> None:
        staged = self._staging.take({_COMPONENT: dict(state)})
        self._writer.submit(SaveJob(staged, step=step, samples_seen=step, epoch=0, metric=Metric(), curve=()))

    def wait(self) -> None:
        self._writer.wait()

    def load(self, step: int) -> dict[str, torch.Tensor]:
        manifest = next(c.manifest for c in read_history(self._runlog).checkpoints if c.manifest.step == step)
        tensors = read_checkpoint(self._store, run_id=_RUN, manifest=manifest).tensors
        return {name.removeprefix(f"{_COMPONENT}."): tensor for name, tensor in tensors.items()}

    def files(self, step: int) -> list[Path]:
        return sorted(path for path in self._step_folder(step).iterdir() if path.is_file())

    def drop(self, step: int) -> None:
        self._store.delete([f"{keys.step_prefix(_RUN, _ATTEMPT, step)}{path.name}" for path in self.files(step)])

    def close(self) -> None:
        self._writer.close()
        self._staging.close()

    def _step_folder(self, step: int) -> Path:
        return self._folder / keys.step_prefix(_RUN, _ATTEMPT, step)


class OurUploader:
    """The writer process with an S3 store."""

    note: ClassVar[str] = "Includes staging, digests and the index; 16 MB parts."

    def prepare(self, state: State, bucket: Bucket) -> None:
        if bucket.is_null:
            os.environ |= {"AWS_ACCESS_KEY_ID": "segue-bench", "AWS_SECRET_ACCESS_KEY": "segue-bench"}
        self._state, self._staging = dict(state), StagingArea()
        self._staging.prepare({_COMPONENT: self._state})
        self._shards = ProcessWriter([StoreSpec(url=f"s3://{bucket.name}", endpoint_url=bucket.endpoint_url)])
        self._shards.wait_until_ready()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._uploading: Future[Written] | None = None

    def start(self, key: str) -> None:
        staged = self._staging.take({_COMPONENT: self._state})
        self._uploading = self._thread.submit(self._upload, staged, key)

    def wait(self) -> None:
        if self._uploading is not None:
            self._uploading.result()

    def close(self) -> None:
        self._thread.shutdown()
        self._shards.close()
        self._staging.close()

    def _upload(self, staged: Staged, key: str) -> Written:
        written = self._shards.write(staged, Save(key, _ATTEMPT, 0))
        self._staging.release(staged)
        return written
