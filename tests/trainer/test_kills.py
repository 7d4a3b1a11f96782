"""The main promise: at whatever moment the trainer is killed, the resumed run equals one that was never killed."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history


def final_digests(runlog):
    newest = read_history(runlog).newest
    return newest.manifest.components


def verdicts_of(runlog):
    return [attempt.verdict.kind for attempt in read_history(runlog).attempts if attempt.verdict is not None]


class Killer:
    """Kills the trainer so many seconds after its start, or after the verdict on its resume or its first commit."""

    def __init__(self, after_seconds, *, from_verdict):
        self._after_seconds, self._from_verdict = after_seconds, from_verdict
        self._counting_from = None if from_verdict else time.monotonic()

    def __call__(self, pid, log, plan):
        if self._counting_from is None:
            attempt = read_history(log).attempt_of(plan.segment, plan.attempt)
            has_reached = attempt is not None and (attempt.verdict is not None or attempt.commits)
            self._counting_from = time.monotonic() if has_reached else None
        if self._counting_from is None or time.monotonic() < self._counting_from + self._after_seconds:
            return False
        os.kill(pid, signal.SIGKILL)
        return True


@pytest.mark.matrix
def test_kills_at_random_moments_lose_no_commit_and_change_no_bit(fork_server, make_spec, open_log):
    wanted = 4  # `python -m benchmarks crash` makes hundreds.
    steps = 190 * wanted
    fields = {"steps": steps, "config": {"pause_seconds": 0.002}, "checkpoints": {"every_steps": 25}}
    undisturbed = make_spec(run_id="undisturbed", **fields)
    reference = open_log(undisturbed)
    fork_server.run_to_the_end(reference, undisturbed)

    chance = random.Random(8)
    spec = make_spec(run_id="killed", policy={"max_lost_in_place": 100}, **fields)
    runlog = open_log(spec)
    kills = 0
    committed_before = 0
    while read_history(runlog).committed_step < steps:
        # Every other kill counts from the verdict or a commit: on a slow machine none would ever be reached otherwise.
        # Those come soon after: the run must not reach its goal before all kills are spent.
        is_late = kills % 2 == 1
        after_seconds = chance.uniform(0.0, 0.1 if is_late else 0.6)
        # All kills may fall between a commit and its seal: then more follow, until one resume was judged.
        has_room = committed_before < steps - 150
        is_judged = VerdictKind.EXACT in verdicts_of(runlog)
        is_killing = kills < wanted or (has_room and not is_judged)
        killer = Killer(after_seconds, from_verdict=is_late or kills >= wanted) if is_killing else None
        report = fork_server.run_attempt(runlog, spec, observer=killer)
        kills += report.stop_reason is StopReason.LOST
        history = read_history(runlog.reload())
        # No partial checkpoint is visible: every one in the log is read back complete, with every byte verified.
        assert history.committed_step >= committed_before
        if history.newest:
            read_checkpoint(runlog.store, run_id=spec.run_id, manifest=history.newest.manifest)
        committed_before = history.committed_step

    history = read_history(runlog)
    verdicts = verdicts_of(runlog)
    assert kills >= wanted
    assert not history.damage
    assert all(checkpoint.quarantined is None for checkpoint in history.checkpoints)
    assert VerdictKind.BROKEN not in verdicts
    assert verdicts.count(VerdictKind.EXACT) >= max(wanted // 8, 1)  # The other attempts were killed before a verdict.
    assert final_digests(runlog) == final_digests(reference)
