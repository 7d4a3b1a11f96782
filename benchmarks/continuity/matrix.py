"""`python -m benchmarks continuity`: makes a matrix of faulty and clean resumes and SIGKILLs, and measures the cost of
the detection.

Every resume goes through `segue.trainer.attempt.run_attempt`. Its verdict is compared with the result of the smoothness
rules of the tutorials on the losses around the same resume.
"""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.continuity.blind.cases import cases
from benchmarks.continuity.blind.measure import Rounds, resumes
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.controls import CONTROLS
from benchmarks.continuity.cost import bytes_per_step, measure_cost
from benchmarks.continuity.kills import Kills
from benchmarks.continuity.levels.measure import measure as measure_levels
from benchmarks.continuity.levels.measure import names as level_names
from benchmarks.continuity.recipes import MODELS, OPTIMIZERS
from benchmarks.continuity.report import report_of
from benchmarks.continuity.tasks import KINDS, CleanTask, FaultyTask, Outcome, Task, features_of, run_task

_FIRST_STEP, _BETWEEN_STEPS = 57, 9
"""Resume points of faulty resumes. They are late enough for 50 earlier losses, and never at a step at which the sums of
gradients are zero."""
_KINDS_A_TASK = 24
KIND_NAMES: tuple[str, ...] = (*(kind.name for kind in KINDS), *(case.name for case in cases()))


@dataclass(frozen=True)
class Options:
    """The options of the benchmark."""

    kinds: tuple[str, ...] | None = None
    """Names of kinds; None: all kinds."""
    controls: tuple[str, ...] = tuple(control.name for control in CONTROLS)
    models: tuple[str, ...] = MODELS
    optimizers: tuple[str, ...] = OPTIMIZERS
    seeds: int = 3
    points: int = 2
    """Number of resume points of each faulty kind, model, optimizer and seed."""
    clean_seeds: int = 5
    clean_rounds: int = 7
    """Number of resumes in a row of each clean run."""
    scripts: Rounds | None = field(
        default_factory=partial(Rounds, sound=16, alone=3, alone_every=1, noisy=90, lost_every=1)
    )
    """The number of resumes of typical training scripts; None: no resumes."""
    level_every: int | None = 1
    """One of this number of scripts that lose state is also tried as a program and in a framework; None: no script."""
    kills: int = 120
    pairs: int = 300
    """Number of pairs of steps for the measurement of the cost; 0: the cost is not measured."""
    curve_steps: int = 1000
    jobs: int = len(os.sched_getaffinity(0))
    """Number of processes."""


def quick(options: Options) -> Options:
    """Options with one seed, one resume point and few kills."""
    fewer: dict[str, Any] = {"seeds": 1, "points": 1, "clean_seeds": 1, "clean_rounds": 2, "kills": 6, "pairs": 100}
    return replace(options, **fewer, scripts=Rounds(), level_every=12)


def measure(options: Options, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the benchmark and return the report. No file or process is left behind."""
    started = time.monotonic()
    tasks, outcomes = list(_tasks(options)), list[Outcome]()
    with _quietly():
        for number, found in enumerate(_done(tasks, jobs=options.jobs), start=1):
            outcomes += found
            say(f"resumes: {len(outcomes)} made, {number} of {len(tasks)} runs")
    scripts = _scripts(options, say=say)
    levels = _levels(options, say=say)
    kills = Kills(kills=options.kills, seed=0, say=say).make() if options.kills else {}
    say("cost of a step")
    cost: dict[str, Any] = {}
    if options.pairs:
        measured = measure_cost(pairs=options.pairs)
        cost = {**asdict(measured), "step_overhead_share": round(measured.step_overhead_share, 5)}
        cost |= bytes_per_step(steps=options.curve_steps)
    return report_of(
        _chosen(options),
        outcomes,
        scripts,
        levels=levels,
        kills=kills,
        cost=cost,
        applicable={kind.name: _models_of(kind.name, options) for kind in _chosen(options)},
        seconds=time.monotonic() - started,
        jobs=options.jobs,
    )


def passed(report: dict[str, Any]) -> bool:
    """Whether no clean resume was called broken, no faulty resume made a commit, and every part of the benchmark
    ran."""
    return not (report["false_alarms"] or report["problems"])


def _chosen(options: Options) -> tuple[Any, ...]:
    return tuple(kind for kind in KINDS if options.kinds is None or kind.name in options.kinds)


def _scripts(options: Options, *, say: Callable[[str], None]) -> list[BlindOutcome]:
    if options.scripts is None:
        return []
    return resumes((), rounds=options.scripts, jobs=options.jobs, names=options.kinds, say=say)


def _levels(options: Options, *, say: Callable[[str], None]) -> dict[str, list[BlindOutcome]]:
    if options.scripts is None or options.level_every is None:
        return {}
    chosen = [name for name in level_names() if options.kinds is None or name in options.kinds]
    return measure_levels(chosen[:: options.level_every], jobs=options.jobs, say=say)


def _models_of(name: str, options: Options) -> list[tuple[str, str]]:
    kind = next(kind for kind in KINDS if kind.name == name)
    pairs = ((model, optimizer) for model in options.models for optimizer in options.optimizers)
    return [pair for pair in pairs if kind.applies_to(features_of(*pair))]


def _tasks(options: Options) -> Iterator[Task]:
    """The tasks with the longest task first, so that no long task runs alone at the end."""
    for model in options.models:
        for optimizer in options.optimizers:
            yield from _faulty_tasks(options, model, optimizer)
            for seed in range(options.clean_seeds):
                for control in options.controls:
                    yield CleanTask(model, optimizer, seed, control, options.clean_rounds)


def _faulty_tasks(options: Options, model: str, optimizer: str) -> Iterator[FaultyTask]:
    kinds = [kind for kind in _chosen(options) if kind.applies_to(features_of(model, optimizer))]
    plain = [kind.name for kind in kinds if not kind.config]
    groups = [tuple(plain[n : n + _KINDS_A_TASK]) for n in range(0, len(plain), _KINDS_A_TASK)]
    groups += [(kind.name,) for kind in kinds if kind.config]
    for seed in range(options.seeds):
        for point in range(options.points):
            for group in groups:
                yield FaultyTask(model, optimizer, seed, _FIRST_STEP + _BETWEEN_STEPS * point, group)


def _done(tasks: Iterable[Task], *, jobs: int) -> Iterator[list[Outcome]]:
    if jobs == 1:
        yield from map(run_task, tasks)
        return
    # Threads that wait by spinning keep others from the core; torch's library reads the setting only once.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.continuity.tasks"])
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_be_quiet) as pool:
        try:
            for future in as_completed([pool.submit(run_task, task) for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the log messages about faults, because this benchmark makes thousands of faults on purpose."""
    log = logging.getLogger("segue")
    level = log.level
    _be_quiet()
    try:
        yield
    finally:
        log.setLevel(level)


def _be_quiet() -> None:
    logging.getLogger("segue").setLevel(logging.CRITICAL)
