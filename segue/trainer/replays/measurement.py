"""The measurement of a recipe's noise with fresh processes. The noise may explain a replay that differs from its
witness."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from segue.continuity.noise import NONE, Noise, may_be_rare, noise_of
from segue.records import WitnessRow
from segue.trainer.replays.fresh import FreshProcesses

log = logging.getLogger(__name__)


def measured_noise(
    processes: FreshProcesses,
    witness: Sequence[WitnessRow],
    attempt: Sequence[WitnessRow],
    *,
    is_attempt_fresh: bool = False,
    is_whole: bool = True,
    is_noisy: bool = False,
    is_lost: bool = False,
) -> tuple[Noise, bool]:
    """Return the noise between `attempt` and its witness, and whether all processes have answered.

    The flags are the same as the flags of `segue.continuity.noise.noise_of`. If the replays agree and differ only
    slightly from the witness, one more process replays with deterministic kernels only. Four replays do not show noise
    that occurs once in hundreds of replays. But the process with deterministic kernels shows whether the usual kernels
    are deterministic.
    """
    own = attempt if is_whole else None
    fresh, is_complete, unit = processes.replays(own=own, is_own_fresh=is_attempt_fresh)

    def found_with(*, is_noisy: bool) -> Noise:
        return noise_of(
            witness,
            attempt,
            fresh,
            is_attempt_fresh=is_attempt_fresh,
            is_whole=is_whole,
            is_noisy=is_noisy,
            is_lost=is_lost,
            unit=unit,
        )

    found = found_with(is_noisy=is_noisy)
    is_open = found == NONE and is_complete and not is_noisy and not is_lost
    if is_open and fresh and may_be_rare(witness, attempt if is_whole else (), fresh, unit=unit):
        log.warning("replays agree, but differ from the witness by rounding; repeating with deterministic kernels")
        if processes.has_other_kernels(fresh[0]):
            return found_with(is_noisy=True), is_complete
    return found, is_complete
