"""`python -m benchmarks crash`: SIGKILL at named operations and at random, on a folder and on S3, again and again.

After every kill, the store is read and checked, and the run continues. If a run does not end with the weights of an
uninterrupted run, `final_identical` is false.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crash.forked_trainers import ForkServer, ForkServerError
from benchmarks.crash.places import LOCAL, S3, LocalPlace, Place, s3_place
from benchmarks.crash.plan import NAMES, Kill, OutsideKill, lanes, schedule
from benchmarks.crash.runs import CrashRun, StuckRunError, Tally
from benchmarks.crash.trainer import RECIPE
from segue.spec import RunSpec

_WIDTH, _FROZEN = 2048, 200_000
"""A state of 1.3 MB, of which 0.8 MB never change. The state is large enough for writes that bypass the page cache."""
_OUTSIDE_PAUSE_SECONDS = 0.01
_MOST_TRIES = 6
"""Number of attempts that may miss a kill's point before this counts as a problem."""
_SAVINGS: tuple[dict[str, Any], ...] = (
    {},
    {"staging": "overlapped", "staging_buffers": 2},
    {"full_every": 3},
    {"staging": "overlapped", "full_every": 3},
)
"""How runs save, in turn."""


_FIGURES = (
    "commits_lost",
    "records_lost",
    "torn_visible",
    "orphans_left",
    "orphan_bytes_left",
    "unfinished_left",
    "unfinished_left_elsewhere",
)
_COUNTS = ("runs", "runs_swept", "attempts", "commits", "pruned", "quarantined")


@dataclass(frozen=True)
class Options:
    """The options of the benchmark."""

    kills: int = 200
    seed: int = 0
    places: tuple[str, ...] = (LOCAL, S3)
    endpoint_url: str | None = None
    """The S3 endpoint, with the credentials that boto3 finds; None: a separate moto server."""
    steps: int = 400
    """Number of steps of each run."""
    kills_a_run: int = 20
    """Largest number of kills in a run. A run near its goal is completed, and the next run gets the remaining kills."""


@dataclass
class _Scene:
    """The objects that all runs share."""

    options: Options
    folder: Path
    fork_server: ForkServer
    say: Callable[[str], None]
    tally: Tally = field(default_factory=Tally)
    expected: dict[str, str] = field(default_factory=dict)
    """Digests of the undisturbed run's components."""
    different: list[str] = field(default_factory=list)
    """Runs with a different final state."""
    runs: int = 0

    def next_run(self, place: Place, *, pause_seconds: float, with_fast_folder: bool) -> tuple[CrashRun, str]:
        """A run that has not started yet, and its id."""
        run_id = f"{place.name}-{self.runs}"
        fast = {"fast_folder": str(self.folder / "fast")} if with_fast_folder and self.runs % 2 else {}
        spec = RunSpec.parse(
            {
                "run_id": run_id,
                "recipe": RECIPE,
                "steps": self.options.steps,
                "config": {"width": _WIDTH, "frozen": _FROZEN, "pause_seconds": pause_seconds},
                "threads": 1,
                "device": "cpu",
                "checkpoints": {"every_steps": 5} | _SAVINGS[self.runs % len(_SAVINGS)] | fast,
                "policy": {"max_lost_in_place": 10_000},
                "liveness": {"heartbeat_seconds": 0.05},
                "continuity": {"rehearsal": "off"},
            }
        )
        self.runs += 1
        chance = random.Random(f"{self.options.seed} {run_id}")
        run = CrashRun(
            spec,
            place=place,
            fork_server=self.fork_server,
            notes=self.folder / f"{run_id}.notes",
            tally=self.tally,
            chance=chance,
        )
        return run, run_id


def measure(options: Options, *, say: Callable[[str], None], places: Sequence[Place] | None = None) -> dict[str, Any]:
    """Make the kills and return the report. No file, process or bucket is left behind, even after an error. `places`
    are used instead of the places in the options.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="segue-crash-") as name, ExitStack() as stack:
        folder = Path(name)
        say("starting")
        chosen = places if places is not None else list(_places(options, folder, stack))
        fork_server = stack.enter_context(ForkServer(folder / "trainer.log"))
        scene = _Scene(options, folder, fork_server, say)
        try:
            _undisturbed(scene)
            plan = schedule(kills=options.kills, places=[place.name for place in chosen], seed=options.seed)
            by_name = {place.name: place for place in chosen}
            for (place_name, is_outside), kills in lanes(plan).items():
                pause = _OUTSIDE_PAUSE_SECONDS if is_outside else by_name[place_name].pause_seconds
                _Lane(scene, by_name[place_name], kills, pause_seconds=pause, is_outside=is_outside).run()
        except ForkServerError as error:
            scene.tally.problems.append(f"no trainer can be started any more: {error}")
        except StuckRunError:
            pass  # Not even the undisturbed run; why is among the problems.
        return _report(scene, chosen, seconds=time.monotonic() - started)


def passed(report: dict[str, Any]) -> bool:
    """Whether all kills were made, and no check failed."""
    bad = ("commits_lost", "torn_visible", "records_lost", "problems")
    return bool(report["final_identical"]) and not any(report[name] for name in bad)


class _Lane:
    """The kills that can share runs, because they have one place and one kind."""

    def __init__(
        self, scene: _Scene, place: Place, kills: Sequence[Kill], *, pause_seconds: float, is_outside: bool
    ) -> None:
        self._scene, self._place, self._pause_seconds = scene, place, pause_seconds
        # What is killed inside goes through one store; a second one would make a damaged shard whole again.
        self._with_fast_folder = is_outside
        self._left = deque((kill, _MOST_TRIES) for kill in kills)

    def run(self) -> None:
        """Make one run after another, until all kills are made."""
        while self._left:
            run, run_id = self._scene.next_run(
                self._place, pause_seconds=self._pause_seconds, with_fast_folder=self._with_fast_folder
            )
            try:
                self._kill_again_and_again(run)
                run.finish()
                is_same = run.checker.final_state() == self._scene.expected
            except StuckRunError:
                self._left.clear()  # Why is among the problems; the kills that are left are not made.
                is_same = False
            run.close()
            if not is_same:
                self._scene.different.append(run_id)

    def _kill_again_and_again(self, run: CrashRun) -> None:
        kills = 0
        while self._left and kills < self._scene.options.kills_a_run and not run.is_near_its_goal:
            kill, tries = self._left.popleft()
            tally = self._scene.tally
            self._scene.say(f"kill {tally.kills.total() + 1} of {self._scene.options.kills}: {_in_words(kill)}")
            if run.kill(kill):
                kills += 1
            elif tries > 1:
                self._left.append((kill, tries - 1))
            else:
                tally.problems.append(f"{_in_words(kill)}: no attempt came to it")


def _places(options: Options, folder: Path, stack: ExitStack) -> Iterator[Place]:
    if LOCAL in options.places:
        yield LocalPlace(folder / "store")
    if S3 in options.places:
        yield stack.enter_context(s3_place(options.endpoint_url))


def _undisturbed(scene: _Scene) -> None:
    """Make the undisturbed run, whose final state all other runs must have."""
    scene.say("the uninterrupted run")
    place = LocalPlace(scene.folder / "undisturbed")
    run, _ = scene.next_run(place, pause_seconds=0.0, with_fast_folder=False)
    try:
        run.finish()
        scene.expected = run.checker.final_state()
    finally:
        run.close()


def _in_words(kill: Kill) -> str:
    when = (
        f"{kill.after_seconds:.2f} s in" if isinstance(kill, OutsideKill) else f"{kill.moment}, no. {kill.point.number}"
    )
    return f"{kill.place}: {kill.name} ({when})"


def _report(scene: _Scene, places: Sequence[Place], *, seconds: float) -> dict[str, Any]:
    tally, options = scene.tally, scene.options
    if (made := tally.kills.total()) < options.kills:
        tally.problems.append(f"{options.kills - made} of {options.kills} kills were not made")
    return {
        "kills": made,
        **{name: tally.figures[name] for name in _FIGURES},
        "final_identical": bool(scene.expected) and not scene.different,
        **{f"kills_at_{_key(name)}": tally.kills[name] for name in NAMES},
        **{f"kills_{moment}": tally.moments[moment] for moment in ("before", "middle", "after", "any")},
        **{f"kills_on_{place.name}": tally.places[place.name] for place in places},
        "stores": ", ".join(f"{place.name} ({place.kind})" for place in places),
        **{name: tally.figures[name] for name in _COUNTS},
        **{
            f"resumes_{verdict}": tally.verdicts[verdict] for verdict in ("exact", "equivalent", "unverified", "broken")
        },
        "different_runs": ", ".join(scene.different),
        "problems": tally.problems,
        "leftovers": tally.leftovers,
        "steps": options.steps,
        "seed": options.seed,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(seconds, 1),
    }


def _key(name: str) -> str:
    return re.sub(r"[^a-z]+", "_", name)
