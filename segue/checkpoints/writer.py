"""The background writer: makes snapshots durable, commits them, seals them and prunes, in that order."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass

from segue import layout
from segue.checkpoints import ring
from segue.checkpoints.shards import write_shards
from segue.checkpoints.snapshot import Snapshot, digest
from segue.clock import Clock
from segue.entries import CommitEntry, Entry, PruneEntry, SealEntry
from segue.history import read_history
from segue.records import CheckpointRef, Environment, Manifest, VerdictKind, WitnessRow
from segue.runlog import RunLog, Stamp
from segue.spec import CheckpointSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True)
class SaveJob:
    """One snapshot on its way to a commit."""

    snapshot: Snapshot
    step: int
    samples_seen: int
    epoch: int
    metric: float | None
    curve: bytes
    """The attempt's loss curve so far, as parquet."""


@dataclass(frozen=True)
class SealJob:
    """Witness rows for the checkpoint at `step`."""

    step: int
    rows: tuple[WitnessRow, ...]


class Writer:
    """One thread that writes in order. A store that fails is asked again, for ever, while training goes on."""

    def __init__(
        self,
        runlog: RunLog,
        *,
        attempt_id: str,
        epoch: int,
        parent: CheckpointRef | None,
        environment: Environment,
        retention: CheckpointSpec,
        clock: Clock,
    ) -> None:
        self._runlog, self._clock = runlog, clock
        self._attempt_id, self._epoch, self._parent = attempt_id, epoch, parent
        self._environment, self._retention = environment, retention
        self._jobs: queue.Queue[SaveJob | SealJob | None] = queue.Queue()
        self._idle = threading.Condition()
        self._pending = 0
        self._stopped = threading.Event()
        self._commits: dict[int, CheckpointRef] = {}
        self.last_commit: CheckpointRef | None = None
        """The newest checkpoint this attempt committed."""
        self._failure: Exception | None = None
        self.trouble: str | None = None
        """Why the store is being asked again just now; None while all is well."""
        self.last_save_seconds: float | None = None
        self._thread = threading.Thread(target=self._work, name="segue-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._pending > 0

    def submit(self, job: SaveJob | SealJob) -> None:
        """Queue a job; returns at once."""
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until all jobs are done; False when time ran out first.

        Raises:
            FencedError: a newer claim exists; nothing more will be committed.
        """
        with self._idle:
            done = self._idle.wait_for(lambda: self._pending == 0 or self._failure is not None, timeout_seconds)
        self.raise_failure()
        return done

    def raise_failure(self) -> None:
        """Raise what stopped the writer, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop after the job in hand. What was not committed by then never existed."""
        self._stopped.set()
        self._jobs.put(None)
        self._thread.join(timeout=_LONGEST_PAUSE_SECONDS)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._until_it_works(job)
            except Exception as failure:
                # Handed to the training loop, which raises it at its next safe point; this thread is done.
                with self._idle:
                    self._failure = failure
                    self._idle.notify_all()
                return
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _until_it_works(self, job: SaveJob | SealJob) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if isinstance(job, SaveJob):
                    self._save(job)
                else:
                    self._seal(job)
            except (StoreWriteError, StoreReadError) as error:
                self.trouble = str(error)
                log.warning("store trouble, trying again in=%.1f reason=%s", pause, error)
                if self._stopped.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self.trouble = None
                return

    def _save(self, job: SaveJob) -> None:
        if job.step in self._commits:
            return  # Committed by a try whose later part failed.
        started = self._clock.monotonic()
        run_id, store = self._runlog.run_id, self._runlog.store
        shards = write_shards(store, run_id=run_id, attempt_id=self._attempt_id, step=job.step, snapshot=job.snapshot)
        store.put(layout.metrics_key(run_id, self._attempt_id), job.curve)
        digests = digest(job.snapshot)
        manifest = Manifest(
            step=job.step,
            samples_seen=job.samples_seen,
            epoch=job.epoch,
            parent=self._parent,
            shards=shards,
            tensors=digests.tensors,
            components=digests.components,
            environment=self._environment,
            metric=job.metric,
        )

        def build(stamp: Stamp) -> Entry:
            common = stamp(epoch=self._epoch)
            return CommitEntry.model_validate(common | {"attempt_id": self._attempt_id, "manifest": manifest})

        # Commit last: a record in the log is the only thing readers look for.
        slot = self._runlog.append(build, epoch=self._epoch)
        self.last_commit = CheckpointRef(slot=slot.number, step=job.step, attempt_id=self._attempt_id)
        self._commits[job.step] = self.last_commit
        self.last_save_seconds = self._clock.monotonic() - started
        log.info(
            "checkpoint committed step=%d bytes=%d seconds=%.2f",
            job.step,
            manifest.size_bytes,
            self.last_save_seconds,
        )
        self._prune()

    def _seal(self, job: SealJob) -> None:
        ref = self._commits.get(job.step)
        if ref is None:
            return  # Its checkpoint was never committed, so there is nothing to vouch for.

        def build(stamp: Stamp) -> Entry:
            common = stamp(epoch=self._epoch)
            return SealEntry.model_validate(
                common | {"attempt_id": self._attempt_id, "checkpoint": ref, "rows": job.rows}
            )

        self._runlog.append(build, epoch=self._epoch)

    def _prune(self) -> None:
        history = read_history(self._runlog)
        proven = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
        verified = [resume.parent for resume in history.resumes if resume.verdict.kind in proven]
        kept = ring.slots_to_keep(
            history.checkpoints, keep=self._retention.keep, best=self._retention.best, verified_parents=verified
        )
        slots = ring.slots_to_prune(history.checkpoints, kept=kept)
        if not slots:
            return

        def build(stamp: Stamp) -> Entry:
            return PruneEntry.model_validate(stamp(epoch=self._epoch) | {"slots": slots})

        # Said before it is done: a reader then never mistakes a pruned checkpoint for a damaged one.
        self._runlog.append(build, epoch=self._epoch)
        names: dict[bool, set[str]] = {True: set(), False: set()}
        for checkpoint in history.checkpoints:
            names[checkpoint.ref.slot in slots].update(shard.key for shard in checkpoint.manifest.shards)
        # Two commits of the same shards cannot be ruled out in a log that was written by an older segue.
        keys = [f"{self._runlog.run_id}/{name}" for name in sorted(names[True] - names[False])]
        try:
            self._runlog.store.delete(keys)
        except StoreWriteError as error:
            log.warning("pruned bytes could not be deleted and stay behind reason=%s", error)
