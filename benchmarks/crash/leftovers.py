"""Artificial leftovers of lost machines and bad disks in a store, without which some operations would never happen."""

from __future__ import annotations

import random

from segue.launch.assignment import Assignment
from segue.runlog import keys
from segue.runlog.history import Checkpoint, History
from segue.runlog.log import RunLog
from segue.stores import Store
from segue.trainer.claim import claim_run
from segue.trainer.process.environment import environment_of, prepare_device

_STEP = 1
"""A step at which no checkpoint is ever committed, because it is too early."""


def claim_and_vanish(log: RunLog, assignment: Assignment) -> None:
    """Make an attempt whose machine is lost immediately after its claim."""
    claim_run(log, assignment, environment=environment_of(prepare_device(assignment.spec)))


def leave_an_orphan(store: Store, run_id: str, history: History) -> None:
    """Write shards that no record names, as if the newest attempt had ended before their commit."""
    attempt_id = history.attempts[-1].claim.attempt_id
    for name in (keys.shard_name(attempt_id, _STEP, 0), keys.state_name(attempt_id, _STEP, 0)):
        store.put(f"{run_id}/{name}", b"of no use")


def damage(store: Store, run_id: str, checkpoint: Checkpoint, *, chance: random.Random) -> str:
    """Flip a bit in one of the shards that this checkpoint does not share with earlier ones. Return the shard's key
    without the run id."""
    ref = checkpoint.ref
    own = keys.step_prefix(run_id, ref.attempt_id, ref.step)
    shards = [f"{run_id}/{shard.key}" for shard in checkpoint.manifest.shards]
    key = chance.choice([key for key in shards if key.startswith(own)])
    data = bytearray(store.get(key))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    store.put(key, bytes(data))
    return key.removeprefix(f"{run_id}/")
