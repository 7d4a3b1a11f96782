"""SIGKILLs of real trainer processes at random moments. Each resume after a kill is clean, and its verdict must be
exact."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.continuity.recipes import MODELS, OPTIMIZERS, RECIPE
from benchmarks.continuity.tasks import workplace
from benchmarks.crash.forked_trainers import ForkServer, ForkServerError
from benchmarks.crash.places import LOCAL, LocalPlace
from benchmarks.crash.plan import OutsideKill, Victim
from benchmarks.crash.runs import CrashRun, StuckRunError, Tally
from segue.spec import RunSpec

_STEPS = 240
_EVERY_STEPS = 20
_PAUSE_SECONDS = 0.005
"""Pause in each step. Without the pause, a run would end after only a few kills."""
_MOST_WAIT_SECONDS = 0.8
_KILLS_A_RUN = 10
_TRIES = 4


class Kills:
    """Runs that are killed repeatedly. Each run is compared with the same run without kills."""

    def __init__(self, *, kills: int, seed: int, say: Callable[[str], None], steps: int = _STEPS) -> None:
        """Each run has `steps` steps."""
        self._kills, self._seed, self._say, self._steps = kills, seed, say, steps
        self._tally = Tally()
        self._different: list[str] = []
        self._runs = 0

    def make(self) -> dict[str, Any]:
        """Make the runs, and return the results. No file or process is left behind."""
        with tempfile.TemporaryDirectory(prefix="segue-kills-", dir=workplace()) as name:
            folder = Path(name)
            with ForkServer(folder / "trainer.log") as fork_server:
                try:
                    while self._done < self._kills:
                        self._run(folder, fork_server)
                except ForkServerError as error:
                    self._tally.problems.append(f"no trainer can be started any more: {error}")
                except StuckRunError:
                    pass  # Why is among the problems.
        return self._report()

    @property
    def _done(self) -> int:
        return self._tally.kills.total()

    def _run(self, folder: Path, fork_server: ForkServer) -> None:
        model = MODELS[self._runs % len(MODELS)]
        optimizer = OPTIMIZERS[self._runs // len(MODELS) % len(OPTIMIZERS)]
        chance = random.Random(f"{self._seed} {self._runs}")
        run = self._open(folder, fork_server, f"killed-{self._runs}", model=model, optimizer=optimizer, chance=chance)
        try:
            kills = 0
            for _ in range(_TRIES * _KILLS_A_RUN):
                if kills >= _KILLS_A_RUN or self._done >= self._kills or run.is_near_its_goal:
                    break
                self._say(f"kill {self._done + 1} of {self._kills}")
                kills += run.kill(_random_kill(chance))
            run.finish()
        finally:
            run.close()
        whole = self._open(folder, fork_server, f"whole-{self._runs}", model=model, optimizer=optimizer, chance=chance)
        whole.finish()
        if whole.checker.final_state() != run.checker.final_state():
            self._different.append(f"{model} {optimizer}")
        self._runs += 1

    def _open(
        self, folder: Path, fork_server: ForkServer, run_id: str, *, model: str, optimizer: str, chance: random.Random
    ) -> CrashRun:
        spec = RunSpec.parse(
            {
                "run_id": run_id,
                "recipe": RECIPE,
                "steps": self._steps,
                "config": {"model": model, "optimizer": optimizer, "pause_seconds": _PAUSE_SECONDS},
                "seed": self._runs,
                "threads": 1,
                "device": "cpu",
                "checkpoints": {"every_steps": _EVERY_STEPS},
                "policy": {"max_lost_in_place": 10_000},
                "liveness": {"heartbeat_seconds": 0.05},
                "continuity": {"rehearsal": "off"},
            }
        )
        place, notes = LocalPlace(folder / "store"), folder / f"{run_id}.notes"
        tally = self._tally if run_id.startswith("killed") else Tally()
        return CrashRun(spec, place=place, fork_server=fork_server, notes=notes, tally=tally, chance=chance)

    def _report(self) -> dict[str, Any]:
        verdicts: Counter[str] = self._tally.verdicts
        return {
            "sigkills": self._done,
            "sigkill_resumes": verdicts.total(),
            "sigkill_verdicts": dict(verdicts),
            "sigkill_false_alarms": verdicts["broken"],
            "sigkill_runs": self._runs,
            "sigkill_final_identical": self._runs > 0 and not self._different,
            "sigkill_problems": self._tally.problems + [f"{name}: another end" for name in self._different],
        }


def _random_kill(chance: random.Random) -> OutsideKill:
    """Kill at a random moment of an attempt's start or of its training."""
    return OutsideKill(
        place=LOCAL,
        victim=chance.choice((Victim.TRAINER, Victim.BOTH)),
        after_seconds=chance.uniform(0.0, _MOST_WAIT_SECONDS),
        at_work=chance.random() < 0.7,
        is_late=False,
    )
