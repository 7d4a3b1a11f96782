"""Derives the two runs of a scheduled verification from the user's run spec."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from segue.policy.availability import preemptions as preemptions_of
from segue.runlog.history import History
from segue.spec import RunSpec

_LONGEST_BASE = 28
"""Maximum length of the user's run id in the new run ids, because a run id has at most 63 characters."""


@dataclass(frozen=True)
class DrillRuns:
    """The undisturbed and the disturbed run of one scheduled time."""

    spec: RunSpec
    """The user's run spec, which the verification checks."""
    slot: datetime
    undisturbed: RunSpec
    disturbed: RunSpec

    @classmethod
    def of(cls, spec: RunSpec, *, slot: datetime) -> Self:
        """Return the two runs for this scheduled time.

        Equal times give equal run ids, so an interrupted verification can continue. Store, pools, staging, save
        interval, fast folder and all other settings come from `spec`. Both runs stay on spot, because they have no
        deadline and no limit on preemptions. segue sends neither run to experiment trackers.
        """
        base = f"{_short(spec.run_id)}-verify-{slot.astimezone(UTC):%Y%m%dt%H%M%S}"
        policy: dict[str, object] = {"name": "spot_only", "parameters": {}, "max_preemptions": None}
        common: dict[str, object] = {"deadline": None, "policy": spec.policy.model_copy(update=policy), "trackers": {}}
        undisturbed = spec.model_copy(update=common | {"run_id": f"{base}-undisturbed"})
        continuity = spec.continuity.model_copy(update={"disturbable": True})
        disturbed = undisturbed.model_copy(update={"run_id": f"{base}-disturbed", "continuity": continuity})
        return cls(spec, slot, undisturbed, disturbed)


def _short(run_id: str) -> str:
    if len(run_id) <= _LONGEST_BASE:
        return run_id
    return f"{run_id[: _LONGEST_BASE - 7]}-{hashlib.sha256(run_id.encode()).hexdigest()[:6]}"


def own_preemptions(history: History, disturbances: int) -> int:
    """Return the number of preemptions by the pool, without the disturbances of the verification."""
    return max(preemptions_of(history) - disturbances, 0)
