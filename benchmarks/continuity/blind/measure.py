"""Resumes of typical training scripts, by axis, with the verdict of each resume."""

from __future__ import annotations

import logging
import multiprocessing as mp
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.continuity.blind.advice import run_advised
from benchmarks.continuity.blind.alone import run_alone
from benchmarks.continuity.blind.cases import Axis, Case, case_of, cases
from benchmarks.continuity.blind.noise import NoisyRun, lost_under_noise
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.trial import run_case, run_sound
from benchmarks.continuity.faults import void

_CASES_A_PROCESS = 20


@dataclass(frozen=True)
class Rounds:
    """The number of resumes of sound scripts."""

    sound: int = 2
    """Number of resumes in a row of each script that looks suspicious."""
    alone: int = 1
    """Number of resumes in a row of such a script if each round needs a separate process."""
    alone_every: int = 2
    """One of this number of sound scripts with separate processes is resumed."""
    noisy: int = 4
    """Number of clean resumes of each recipe with noise."""
    lost_every: int = 4
    """One of this number of scripts that lose state is also tried under noise."""


def resumes(
    axes: Sequence[Axis],
    *,
    rounds: Rounds,
    jobs: int,
    names: Sequence[str] | None = None,
    say: Callable[[str], None] = void,
) -> list[BlindOutcome]:
    """Resume every case of these axes. If `names` is given, resume only these cases."""
    chosen = [case for case in cases(*axes) if names is None or case.name in names]
    outcomes: list[BlindOutcome] = []
    if together := [(case.name, rounds) for case in chosen if not case.is_alone]:
        for number, found in enumerate(_done(together, jobs=jobs), start=1):
            outcomes += found
            say(f"training scripts: {number} of {len(together)}")
    apart = [case.name for case in chosen if case.is_alone and not case.is_sound]
    sound = [case.name for case in chosen if case.is_alone and case.is_sound]
    if apart := [*apart, *sound[:: 1 if names is not None else rounds.alone_every]]:
        say(f"training scripts that need processes of their own: {len(apart)}")
        outcomes += run_alone(apart, rounds=rounds.alone, jobs=jobs)
    return outcomes


def resumed(name: str, rounds: Rounds = Rounds()) -> list[BlindOutcome]:
    """Make the resumes of one case, in a process of the pool."""
    logging.getLogger("segue").setLevel(logging.CRITICAL)
    case: Case = case_of(name)
    if case.axis is Axis.NOISE:
        return NoisyRun(case, rounds=rounds.noisy).run()
    if case.is_sound:
        return run_sound(case, rounds=rounds.sound)
    is_chosen = zlib.crc32(name.encode()) % rounds.lost_every == 0
    is_also_noisy = is_chosen and case.axis is Axis.UNREGISTERED and case.acts_on == "loss"
    outcome = run_case(case)
    if case.axis in (Axis.UNREGISTERED, Axis.LATE) and case.names and outcome.acts_after is not None:
        outcome = replace(outcome, is_enough=run_advised(case).is_enough)
    return [outcome, *(lost_under_noise(case) if is_also_noisy else ())]


def _done(tasks: Sequence[tuple[str, Rounds]], *, jobs: int) -> Iterator[list[BlindOutcome]]:
    # Not ProcessPoolExecutor: one that replaces its processes can wait without end in Python 3.11.
    with mp.get_context("forkserver").Pool(jobs, maxtasksperchild=_CASES_A_PROCESS) as pool:
        yield from pool.imap_unordered(_resumed, tasks)


def _resumed(task: tuple[str, Rounds]) -> list[BlindOutcome]:
    return resumed(*task)
