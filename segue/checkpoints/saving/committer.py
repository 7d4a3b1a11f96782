"""Writes staged states, commits, prunes and seals in a background thread, one job after the other."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from segue.checkpoints.saving.save_job import Author, SaveJob, SealJob
from segue.checkpoints.saving.staging import Staged
from segue.checkpoints.saving.tracing import span
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.checkpoints.saving.written import Save, Written
from segue.clock import Clock
from segue.errors import WriterDiedError
from segue.records import CheckpointRef, CurveDigest, Manifest
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, Entry, SealEntry
from segue.runlog.log import RunLog, Stamp
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Pruning(Protocol):
    """Deletes the checkpoints that retention no longer keeps (`checkpoints.pruning.Pruner`)."""

    def prune(self, runlog: RunLog) -> None:
        """Delete checkpoints. The writer calls this method after each commit.

        Raises:
            FencedError: a newer claim exists.
            StoreWriteError, StoreReadError: the log could not be read or written. It is safe to call the method again.
        """
        ...

    def drop_earlier_tries(self, runlog: RunLog, commit: CheckpointRef) -> None:
        """Delete the files of earlier tries of a save.

        The writer calls this method after the commit of a repeated save. The method raises no store errors.
        """
        ...


class IncrementalBase:
    """The save whose tensors the next save may refer to. Every `full_every`-th save stores all tensors."""

    def __init__(self, step: int | None = None, *, full_every: int = 1) -> None:
        self.step, self._full_every = step, full_every

    def after(self, step: int, written: Written | None) -> None:
        """Record the result of a save. `written` is None if the save was not written."""
        is_base = written is not None and self._full_every > 1 and written.saves_since_full + 1 < self._full_every
        self.step = step if is_base else None


@dataclass(frozen=True)
class Committed:
    """A committed save."""

    ref: CheckpointRef
    save_seconds: float
    """Seconds from the start of the job to the commit, without the wait for the metric."""
    size_bytes: int


class Writer:
    """A thread that runs the jobs in order.

    If a store fails, the writer tries again without limit while training continues.
    """

    def __init__(
        self,
        runlog: RunLog,
        author: Author,
        *,
        shards: ShardWriter,
        base: IncrementalBase,
        pruner: Pruning,
        release: Callable[[Staged], None],
        clock: Clock,
    ) -> None:
        """The writer calls `release` with each staged state whose bytes are no longer needed."""
        self._runlog, self._author, self._shards, self._base = runlog, author, shards, base
        self._pruner, self._release, self._clock = pruner, release, clock
        self._jobs: queue.Queue[SaveJob | SealJob | None] = queue.Queue()
        self._idle = threading.Condition()
        self._pending = 0
        self._stopped = threading.Event()
        self._commits: dict[int, CheckpointRef] = {}
        self._curve: dict[int, CurveDigest] = {}
        """The parts of the loss curve that were stored since the last commit, by number."""
        self._written: tuple[SaveJob, Written | None] | None = None
        self.last: Committed | None = None
        """The newest commit of this attempt, with the time and the size of the commit."""
        self._failure: Exception | None = None
        self.trouble: str | None = None
        """The reason why the writer tries a save again. The value None means that no save failed."""
        self._thread = threading.Thread(target=self._work, name="segue-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._pending > 0

    @property
    def last_commit(self) -> CheckpointRef | None:
        """The newest checkpoint that this attempt committed."""
        last = self.last
        return None if last is None else last.ref

    @property
    def last_save_seconds(self) -> float | None:
        """Seconds that the newest committed save took. The value is None before the first commit."""
        last = self.last
        return None if last is None else last.save_seconds

    @property
    def last_size_bytes(self) -> int:
        """Number of bytes that the newest committed save added to the store. The value is 0 before the first commit."""
        last = self.last
        return 0 if last is None else last.size_bytes

    def submit(self, job: SaveJob | SealJob) -> None:
        """Queue a job. The method does not wait for the job."""
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until all jobs are done. Return False if the timeout ended first.

        Raises:
            FencedError: a newer claim exists. This attempt therefore can no longer commit.
        """
        with self._idle:
            done = self._idle.wait_for(lambda: self._pending == 0 or self._failure is not None, timeout_seconds)
        self.raise_failure()
        return done

    def raise_failure(self) -> None:
        """Raise the error that stopped the writer, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop_waiting(self) -> None:
        """Give up saves for which another rank has not stored its part."""
        self._shards.stop_waiting()

    def close(self) -> None:
        """Stop the writer after the current job.

        If the job takes too long, stop the writer during the job. Uncommitted saves are lost.
        """
        self._stopped.set()
        self._jobs.put(None)
        self._shards.stop_waiting()
        self._thread.join(timeout=_LONGEST_PAUSE_SECONDS)
        self._shards.close()

    def give_up(self) -> None:
        """Stop the writer immediately, because the current save cannot be completed.

        `close` must still be called after `give_up`.
        """
        self._stopped.set()
        self._shards.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopped.is_set():
            try:
                self._until_it_works(job)
            except Exception as failure:
                # The training loop raises this error at its next safe point; this thread ends.
                with self._idle:
                    self._failure = failure
                    self._idle.notify_all()
                return
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _until_it_works(self, job: SaveJob | SealJob) -> None:
        pause, is_repeated = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                if is_repeated:
                    # An attempt with a newer claim may have adopted the first try of this save.
                    self._runlog.require_claim(self._author.epoch)
                if isinstance(job, SaveJob):
                    self._save(job)
                else:
                    self._seal(job)
            except (StoreWriteError, StoreReadError, WriterDiedError) as error:
                self.trouble = str(error)
                log.warning("store failed, retrying in=%.1f reason=%s", pause, error)
                if self._stopped.wait(pause):
                    raise
                pause, is_repeated = min(2 * pause, _LONGEST_PAUSE_SECONDS), True
            else:
                self.trouble = None
                return

    def _save(self, job: SaveJob) -> None:
        if job.step not in self._commits:
            started = self._clock.monotonic()
            job.staged.wait()
            if job.staged.is_torn:
                log.warning("step not saved, because the state changed during the copy step=%d", job.step)
                self._shards.give_up(job.step)
            written = None if job.staged.is_torn else self._write(job)
            if written is None or not self._author.commits:
                if job.staged.is_torn:
                    self._put_curve(job)
                self._base.after(job.step, written)
                self._release(job.staged)
                return
            written_seconds = self._clock.monotonic() - started
            # The bytes are durable. If this process dies before the metric is known, the save is adopted without it.
            job.metric.wait()
            started = self._clock.monotonic()
            commit, size_bytes = self._commit(job, written)
            self.last = Committed(commit, written_seconds + self._clock.monotonic() - started, size_bytes)
            self._release(job.staged)
            log.info("checkpoint committed step=%d seconds=%.2f", job.step, self.last.save_seconds)
            own = keys.step_prefix(self._runlog.run_id, self._author.attempt_id, job.step).partition("/")[2]
            if any(shard.key.startswith(own) and keys.is_of_repeated_save(shard.key) for shard in written.shards):
                self._pruner.drop_earlier_tries(self._runlog, commit)
        # Otherwise an earlier try has committed the save and then failed.
        self._pruner.prune(self._runlog)

    def _write(self, job: SaveJob) -> Written | None:
        # The save is written only once: if the answer of a commit was lost, other bytes would damage the commit.
        if self._written is None or self._written[0] is not job:
            # The curve is written first, because a save may be adopted, and then its curve must have no gap.
            self._put_curve(job)
            is_signed = self._runlog.is_signed
            # A signed run has no prepared commits, because others who can write to the store could forge them.
            facts = {} if is_signed else self._facts(job)
            save = Save(
                self._runlog.run_id,
                self._author.attempt_id,
                job.step,
                base_step=self._base.step,
                facts=facts,
                is_signed=is_signed,
                first_try=2 if job.lost_ranks else 1,
            )
            with span("write", step=job.step):
                self._written = (job, self._shards.write(job.staged, save))
        return self._written[1]

    def _facts(self, job: SaveJob) -> dict[str, Any]:
        """Return the fields of the manifest that are known before the shards are written."""
        return {
            "step": job.step,
            "samples_seen": job.samples_seen,
            "epoch": job.epoch,
            "parent": None if (parent := self._author.parent) is None else parent.model_dump(mode="json"),
            "environment": self._author.environment.model_dump(mode="json"),
            "metric": _as_json(job.metric.value),
            "curve": [digest.model_dump(mode="json") for digest in self._curve.values()],
        } | ({"lost_ranks": job.lost_ranks} if job.lost_ranks else {})

    def _commit(self, job: SaveJob, written: Written) -> tuple[CheckpointRef, int]:
        manifest = Manifest.model_validate({**self._facts(job), **vars(written)})

        def build(stamp: Stamp) -> Entry:
            self._author.require()
            common = stamp(epoch=self._author.epoch)
            facts = {"attempt_id": self._author.attempt_id, "manifest": manifest, "untracked": job.untracked}
            return CommitEntry.model_validate(common | facts)

        # The commit comes last, because for readers a checkpoint exists only if the log has its record.
        with span("commit", step=job.step):
            slot = self._runlog.append(build, epoch=self._author.epoch)
        commit = CheckpointRef(slot=slot.number, step=job.step, attempt_id=self._author.attempt_id)
        self._commits[job.step] = commit
        self._curve.clear()
        self._base.after(job.step, written)
        return commit, manifest.new_bytes

    def _put_curve(self, job: SaveJob) -> None:
        if not self._author.commits:
            return
        for part in job.curve:
            key = keys.metrics_key(self._runlog.run_id, self._author.attempt_id, part.number)
            self._runlog.store.put(key, part.to_parquet())
            self._curve[part.number] = part.digest()

    def _seal(self, job: SealJob) -> None:
        ref = self._commits.get(job.step)
        if ref is None:
            return  # The checkpoint was never committed, so no seal is written.

        def build(stamp: Stamp) -> Entry:
            common = stamp(epoch=self._author.epoch)
            return SealEntry.model_validate(
                common | {"attempt_id": self._author.attempt_id, "checkpoint": ref, "rows": job.rows}
            )

        self._runlog.append(build, epoch=self._author.epoch)


def _as_json(metric: float | None) -> float | str | None:
    """Return the metric in its form for JSON records. A number that is not finite becomes text."""
    return metric if metric is None or math.isfinite(metric) else str(metric)
