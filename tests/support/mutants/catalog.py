"""All mutants, by room."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.mutants import of_checkpoints, of_continuity, of_policy, of_runlog, of_stores, of_trainer
from tests.support.mutants.mutant import Mutant, Mutants

_OF_ROOMS: Mapping[str, tuple[Mutants, ...]] = {
    "runlog": of_runlog.MUTANTS,
    "signatures": of_runlog.SIGNATURES,
    "stores": of_stores.MUTANTS,
    "checkpoints": of_checkpoints.MUTANTS,
    "trainer": of_trainer.MUTANTS,
    "continuity": of_continuity.MUTANTS,
    "policy": of_policy.MUTANTS,
}
MUTANTS: Mapping[str, tuple[Mutant, ...]] = {
    room: tuple(mutant for group in groups for mutant in group) for room, groups in _OF_ROOMS.items()
}


def chosen(word: str = "") -> list[Mutant]:
    """Those of the room of this name, or with this word in their file or texts; all without one."""
    if word in MUTANTS:
        return list(MUTANTS[word])
    return [mutant for room, all_ in MUTANTS.items() for mutant in all_ if word in room or word in mutant.name]
