"""The process of a resume rehearsal: it restores the newest sealed checkpoint and does its next steps again.

It finds state that a recipe forgot to register before the first preemption does. It writes only its verdict, and ends
with the trainer that started it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from segue.checkpoints.format.snapshot import digest, take
from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.snapshot import snapshot_of
from segue.clock import Clock, SystemClock
from segue.continuity.recipe_diff import SetupChanges, setup_changes, untracked_changes
from segue.continuity.verdict import digest_findings, judge
from segue.errors import CheckpointError, SegueError
from segue.launch.assignment import Assignment, ExitCode
from segue.process import Parent, end_with
from segue.records import Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import DrillEntry, Entry
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog, Stamp
from segue.runlog.open import open_log
from segue.stores.retry import patiently
from segue.trainer.environment import environment_of, prepare_device
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.state import capture

log = logging.getLogger("segue.rehearsal")

_NICENESS = 10
_LOOK_SECONDS = 0.2
_TRIES = 3
_POLL_SECONDS = 1.0


def rehearse(assignment: Assignment, runlog: RunLog, checkpoint: Checkpoint) -> Verdict:
    """Restore a checkpoint into a newly built recipe, replay its witness, and judge; nothing is written.

    Raises:
        CheckpointError, StoreReadError: the checkpoint cannot be read.
    """
    spec = assignment.spec
    device = prepare_device(spec)
    changes = checkpoint.manifest.environment.differs_from(environment_of(device))
    stored = read_stored([runlog.store], run_id=runlog.run_id, manifest=checkpoint.manifest)
    snapshot = snapshot_of(stored)
    recipe = LiveRecipe(spec, device=device, ranks=Ranks(), skips=assignment.plan.skips).restore(snapshot)
    groups = recipe.groups()
    live = take(capture(recipe.components), copy=False)
    restored = digest(live)
    found = setup_changes(snapshot.skeletons, live.skeletons, environment_changes=changes)
    # The code and config are the same as in the trainer. A difference in the setup comes from this process, so it only
    # explains rows that differ.
    setup = SetupChanges(noted=(*found.findings, *found.accepted, *found.noted))
    untracked = untracked_changes(snapshot.skeletons, live.skeletons)
    rows: list[WitnessRow] = []
    left_out = recipe.left_out()
    witness = tuple(takewhile(lambda row: row.batch_fingerprint not in left_out, checkpoint.rows))
    if not digest_findings(stored.digests, restored):
        for _ in witness:
            group = next(groups)
            row, _ = recipe.step(group, recipe.prelude(group))
            rows.append(row.as_witness())
            recipe.advance(group.start, group.samples)
    return judge(
        committed=stored.digests,
        restored=restored,
        witness=witness,
        replay=rows,
        environment_changes=changes,
        setup=setup,
        untracked=untracked,
    )


def main() -> int:
    """Rehearse the resume that the assignment on standard input would need after a preemption.

    The first argument is the process id of the trainer: this process ends with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    clock: Clock = SystemClock()
    started = clock.monotonic()
    with suppress(OSError):
        # If memory runs out, the kernel must kill this process before the trainer.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    end_with(Parent(int(sys.argv[1])), poll_seconds=_POLL_SECONDS)
    spec = assignment.spec
    prefix = f"{spec.run_id} resume rehearsal"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(levelname)s {prefix} | %(message)s")
    runlog = open_log(spec, clock=clock)
    try:
        checkpoint, verdict = _newest_judged(assignment, runlog, clock)
        seconds = clock.monotonic() - started
        patiently(lambda: runlog.append(_entry(checkpoint, verdict, seconds)), what="drill")
    except SegueError as error:
        log.warning("resume rehearsal could not be done reason=%s", error)
        return error.exit_code
    is_broken = verdict.kind is VerdictKind.BROKEN
    level = logging.ERROR if is_broken else logging.INFO
    log.log(level, "judged step=%d seconds=%.1f verdict=%s", checkpoint.manifest.step, seconds, verdict.sentence)
    return ExitCode.BROKEN if is_broken else 0


def _newest_judged(assignment: Assignment, runlog: RunLog, clock: Clock) -> tuple[Checkpoint, Verdict]:
    """Judge the newest checkpoint that has a witness; another is tried when it was pruned meanwhile.

    Raises:
        CheckpointError, StoreReadError: none could be read.
    """
    for tries_left in reversed(range(_TRIES)):
        checkpoint = _newest_sealed(runlog, clock)
        try:
            return checkpoint, _judged(assignment, runlog, checkpoint)
        except CheckpointError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _judged(assignment: Assignment, runlog: RunLog, checkpoint: Checkpoint) -> Verdict:
    try:
        return rehearse(assignment, runlog, checkpoint)
    except SegueError:
        raise
    except (Exception, SystemExit) as error:
        # A recipe may not work in two processes at once, because it locks a file or binds a port.
        log.warning("the recipe raised in the resume rehearsal", exc_info=error)
        why = f"a second process could not run the recipe next to the trainer: {type(error).__name__}: {error}"
        return Verdict(
            kind=VerdictKind.UNVERIFIED, findings=(Finding(component="recipe", channel="raised", sentence=why),)
        )


def _newest_sealed(runlog: RunLog, clock: Clock) -> Checkpoint:
    """The newest checkpoint with a witness. Blocks until there is one; this process ends with the trainer."""
    while True:
        usable = patiently(lambda: read_history(runlog), what="log").usable
        found = next((checkpoint for checkpoint in reversed(usable) if checkpoint.rows), None)
        if found is not None:
            return found
        clock.sleep(_LOOK_SECONDS)


def _entry(checkpoint: Checkpoint, verdict: Verdict, seconds: float) -> Any:
    def build(stamp: Stamp) -> Entry:
        facts = {"checkpoint": checkpoint.ref, "verdict": verdict, "seconds": round(seconds, 2)}
        return DrillEntry.model_validate(stamp(epoch=0) | facts)

    return build


if __name__ == "__main__":
    sys.exit(main())
