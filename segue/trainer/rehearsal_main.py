"""The process of a resume rehearsal: it restores the newest sealed checkpoint and repeats the steps after it.

Before the first preemption, a rehearsal finds state that the recipe does not register. If the rehearsal's steps differ
from those of the trainer, further fresh processes repeat the steps. Differences among the fresh processes are noise,
and not lost state. The rehearsal writes only its verdict. Its process ends when the trainer ends.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from segue.clock import Clock, SystemClock
from segue.continuity.noise import FIX, NONE, Noise, in_words
from segue.continuity.verdict import judge
from segue.errors import CheckpointError, MissingObjectError, MissingShardError, SegueError
from segue.launch.assignment import Assignment, ExitCode
from segue.records import Finding, Manifest, Verdict, VerdictKind
from segue.runlog.entries import DrillEntry, Entry
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog, Stamp
from segue.runlog.open import open_log
from segue.shard import Shard
from segue.stores.base import Store, StoreWriteError
from segue.stores.local import LocalStore
from segue.stores.retry import patiently
from segue.trainer.replays.fresh import FreshProcesses, ReplayRequest, measured_noise
from segue.trainer.replays.replay import replay
from segue.trainer.replays.replay_process import begin_beside, leave
from segue.user_objects import text_of

log = logging.getLogger("segue.rehearsal")

_LOOK_SECONDS = 0.2
_TRIES = 3
_RAISED_FIX = 'give each process its own ports, files and locks, or set continuity.rehearsal = "off"'


class Rehearsed(NamedTuple):
    """The findings of a rehearsal."""

    verdict: Verdict
    process_values: tuple[str, ...] = ()
    """Setup values that differ between this process and the trainer, although both built the same recipe."""
    is_complete: bool = True
    """Whether every process that had to repeat the steps has answered."""


def rehearse(
    assignment: Assignment, runlog: RunLog, checkpoint: Checkpoint, *, clock: Clock, copy: LocalStore | None = None
) -> Rehearsed:
    """Restore a checkpoint into a newly built recipe, replay its witness, and judge the replay. Write nothing.

    `copy` is a store with copies of the checkpoint's files, because retention may prune the originals at any time.

    Raises:
        CheckpointError, StoreReadError: the checkpoint cannot be read.
    """
    made = replay(assignment, runlog, checkpoint, steps=len(checkpoint.rows), copy=copy)
    witness = tuple(takewhile(lambda row: row.batch_fingerprint not in made.left_out, checkpoint.rows))
    rows = made.rows[: len(witness)]

    def judged(noise: Noise) -> Verdict:
        return judge(
            committed=made.committed,
            restored=made.restored,
            witness=witness,
            replay=rows,
            environment_changes=made.environment_changes,
            setup=made.setup,
            untracked=made.untracked,
            noise=noise,
        )

    verdict = judged(NONE)
    if verdict.kind is not VerdictKind.BROKEN or not rows:
        return Rehearsed(verdict, made.process_values)
    log.info("replay differs from the witness; fresh processes replay the steps step=%d", checkpoint.manifest.step)
    folder = str(copy.root) if copy is not None else None
    request = ReplayRequest(assignment=assignment, checkpoint=checkpoint.ref, steps=len(rows), copy_folder=folder)
    # It ends with the trainer, which decides how long to wait for the answer.
    processes = FreshProcesses(request, lambda: True, clock)
    noise, is_complete = measured_noise(processes, witness, rows, is_attempt_fresh=True, is_lost=bool(made.untracked))
    verdict = judged(noise)
    if verdict.kind is VerdictKind.BROKEN and not is_complete and not made.untracked:
        verdict = verdict.model_copy(update={"kind": VerdictKind.UNVERIFIED})
        log.warning("the rehearsal has no result: some steps differ, and no other process could make them again")
    return Rehearsed(verdict, made.process_values, is_complete)


def main() -> int:
    """Rehearse a resume for the assignment that is read from standard input.

    The first command-line argument is the process id of the trainer; this process ends when the trainer ends.
    """
    clock: Clock = SystemClock()
    started = clock.monotonic()
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    begin_beside(int(sys.argv[1]))
    spec = assignment.spec
    prefix = f"{spec.run_id} resume rehearsal"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(levelname)s {prefix} | %(message)s")
    runlog = open_log(spec, clock=clock)
    try:
        checkpoint, found = _newest_judged(assignment, runlog, clock)
        seconds = clock.monotonic() - started
        patiently(lambda: runlog.append(_entry(checkpoint, found, seconds)), what="drill")
    except SegueError as error:
        log.warning("resume rehearsal could not be done reason=%s", error)
        return error.exit_code
    verdict = found.verdict
    is_broken = verdict.kind is VerdictKind.BROKEN
    level = logging.ERROR if is_broken else logging.INFO
    log.log(level, "judged step=%d seconds=%.1f verdict=%s", checkpoint.manifest.step, seconds, verdict.sentence)
    if verdict.noise:
        log.warning("%s. Fix: %s.", in_words(verdict.noise), FIX)
    return ExitCode.BROKEN if is_broken else 0


def _newest_judged(assignment: Assignment, runlog: RunLog, clock: Clock) -> tuple[Checkpoint, Rehearsed]:
    """Judge the newest checkpoint that has a witness.

    If retention prunes the checkpoint before all replays are made, a newer checkpoint is copied and judged instead.

    Raises:
        CheckpointError, StoreReadError: no checkpoint could be read.
        StoreWriteError: there is no space for the copy.
    """
    for tries_left in reversed(range(_TRIES)):
        checkpoint = _newest_sealed(runlog, clock)
        is_first = tries_left == _TRIES - 1
        try:
            with (
                nullcontext()
                if is_first
                else copied(runlog.store, run_id=runlog.run_id, manifest=checkpoint.manifest) as copy
            ):
                found = _judged(assignment, runlog, checkpoint, clock, copy)
        except CheckpointError:
            if not tries_left:
                raise
            continue
        if found.is_complete or not is_first or not _is_pruned(runlog, checkpoint):
            break
    return checkpoint, found


def _is_pruned(runlog: RunLog, checkpoint: Checkpoint) -> bool:
    usable = patiently(lambda: read_history(runlog), what="log").usable
    return all(each.ref != checkpoint.ref for each in usable)


def _judged(
    assignment: Assignment, runlog: RunLog, checkpoint: Checkpoint, clock: Clock, copy: LocalStore | None
) -> Rehearsed:
    try:
        return rehearse(assignment, runlog, checkpoint, clock=clock, copy=copy)
    except SegueError:
        raise
    except (Exception, SystemExit) as error:
        # A recipe may not work in two processes at once, because it locks a file or binds a port.
        log.warning("the recipe raised in the resume rehearsal", exc_info=error)
        why = f"a second process could not run the recipe next to the trainer: {type(error).__name__}: {text_of(error)}"
        finding = Finding(component="recipe", channel="raised", sentence=why, fix=_RAISED_FIX)
        return Rehearsed(Verdict(kind=VerdictKind.UNVERIFIED, findings=(finding,)))


def _newest_sealed(runlog: RunLog, clock: Clock) -> Checkpoint:
    """Wait for a checkpoint with a witness, and return the newest checkpoint that has a witness. This process ends when
    the trainer ends."""
    while True:
        usable = patiently(lambda: read_history(runlog), what="log").usable
        found = next((checkpoint for checkpoint in reversed(usable) if checkpoint.rows), None)
        if found is not None:
            return found
        clock.sleep(_LOOK_SECONDS)


def _entry(checkpoint: Checkpoint, found: Rehearsed, seconds: float) -> Any:
    def build(stamp: Stamp) -> Entry:
        facts = {"verdict": found.verdict, "process_values": found.process_values, "seconds": round(seconds, 2)}
        return DrillEntry.model_validate(stamp(epoch=0) | facts | {"checkpoint": checkpoint.ref})

    return build


_PIECE_BYTES = 64 * 2**20


@contextmanager
def copied(store: Store, *, run_id: str, manifest: Manifest) -> Iterator[LocalStore]:
    """A `with` block with a temporary folder store. The store has a copy of the checkpoint's files under the same keys.

    The folder is deleted when the block ends. As in every store, each read verifies the bytes.

    Raises:
        MissingShardError: the checkpoint was pruned before or during the copy.
        StoreReadError, StoreWriteError: the checkpoint could not be read, or the folder is full.
    """
    with tempfile.TemporaryDirectory(prefix="segue-checkpoint-") as name:
        copy = LocalStore(Path(name)).create()
        for shard in manifest.shards:
            _copy(store, copy, run_id=run_id, shard=shard)
        log.info("checkpoint copied step=%d bytes=%d", manifest.step, manifest.size_bytes)
        yield copy


def _copy(store: Store, copy: LocalStore, *, run_id: str, shard: Shard) -> None:
    key = f"{run_id}/{shard.key}"
    path = copy.root / key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, shard.size_bytes, _PIECE_BYTES):
                file.write(store.get_range(key, start, min(_PIECE_BYTES, shard.size_bytes - start)))
    except MissingObjectError:
        raise MissingShardError(key=shard.key) from None
    except OSError as error:
        raise StoreWriteError(url=copy.url, key=key, why=error.strerror or str(error)) from error


if __name__ == "__main__":
    leave(main())
