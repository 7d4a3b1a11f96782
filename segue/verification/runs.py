"""The two runs of a scheduled verification: the user's own spec, with names of their own and without a deadline."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from segue.policy.availability import preemptions as preemptions_of
from segue.runlog.history import History
from segue.spec import RunSpec

_LONGEST_BASE = 28
"""The most characters of the user's run id that are used; a run id has 63 characters at most."""


@dataclass(frozen=True)
class DrillRuns:
    """An undisturbed run and a disturbed one, for one time of the schedule."""

    spec: RunSpec
    """What is verified, as the user gave it."""
    slot: datetime
    undisturbed: RunSpec
    disturbed: RunSpec

    @classmethod
    def of(cls, spec: RunSpec, *, slot: datetime) -> Self:
        """The runs for this time. The same time names the same runs, so that a verification can continue with them.

        Store, pools, staging, save interval, fast folder and the other settings are the spec's. There is no deadline
        and no bound of preemptions, so both runs stay on spot. Experiment trackers get neither run.
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
    """Preemptions by the pool itself, beside those that the verification made."""
    return max(preemptions_of(history) - disturbances, 0)
