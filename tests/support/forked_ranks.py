"""Attempts of several ranks that start at once: forked with torch loaded, with the environment torchrun gives."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch.distributed import TCPStore

from segue.controller.segment import TrainerEnd, report_or_lost
from segue.launch.assignment import Assignment
from segue.launch.rendezvous import RANKS_VARIABLE, LaunchFolder
from segue.records import SegmentPlan, SegmentReport
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from tests.support.forked_trainers import ForkServer, attempts_to_the_end, next_plan, watch

Observer = Callable[["RankGroup", RunLog, SegmentPlan], bool]
"""Called again and again while an attempt runs, until it returns True."""


@dataclass
class RankGroup:
    """The processes of one attempt, by rank."""

    processes: Sequence[mp.process.BaseProcess]
    folder: LaunchFolder
    notes: TCPStore
    has_ended_the_rest: bool = field(default=False, init=False)
    exit_codes: dict[int, int] = field(default_factory=dict, init=False)
    """The exit code that each rank wrote, once all have ended."""

    @property
    def is_alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def signal(self, rank: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid or 0, number)

    def end_the_rest(self) -> None:
        """Do what torchrun does once a rank has crashed: signal those that are left."""
        if self.has_ended_the_rest or not any(process.exitcode for process in self.processes):
            return
        self.has_ended_the_rest = True
        for process in self.processes:
            if process.is_alive():
                process.terminate()

    def tend(self) -> bool:
        """Whether any rank still runs; if one has crashed, the others are signalled."""
        is_alive = self.is_alive
        self.end_the_rest()
        return is_alive

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.path.glob("*.log")))

    def end(self) -> int | None:
        """Leave no process behind; gives the trainer's exit code."""
        for process in self.processes:
            process.kill()
            process.join()
        left = self.folder.exit_code()
        self.exit_codes = {int(path.name[5:]): int(path.read_text()) for path in self.folder.path.glob("exit-*")}
        self.folder.remove()
        crashed = next((process.exitcode for process in self.processes if process.exitcode), None)
        return crashed if left is None else left


class RanksForkServer:
    """Starts attempts of any number of ranks; one alone is an ordinary trainer."""

    def __init__(self, alone: ForkServer) -> None:
        self._alone = alone
        self._context = mp.get_context("forkserver")

    def start(
        self, spec: RunSpec, plan: SegmentPlan, *, ranks: int, extra: Mapping[str, str] | None = None
    ) -> RankGroup:
        """`{rank}` in a value of `extra` stands for the number of the rank."""
        folder = LaunchFolder.make(Assignment(spec=spec, plan=plan))
        notes = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        if ranks == 1:
            return RankGroup([self._alone.start(spec, plan, environment=extra)], folder, notes)
        common = dict(extra or {}) | {
            RANKS_VARIABLE: str(ranks),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(notes.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        processes = []
        for rank in range(ranks):
            environment = {name: value.replace("{rank}", str(rank)) for name, value in common.items()}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = self._context.Process(target=_be_a_rank, args=(str(folder.path), environment), daemon=True)
            process.start()
            processes.append(process)
        return RankGroup(processes, folder, notes)

    def run_attempt(
        self,
        runlog: RunLog,
        spec: RunSpec,
        *,
        ranks: int,
        observer: Observer | None = None,
        limit_seconds: float = 240.0,
        environment: Mapping[str, str] | None = None,
    ) -> SegmentReport:
        """Decide and make one attempt, to the end of all its processes."""
        plan = next_plan(runlog, spec)
        group = self.start(spec, plan, ranks=ranks, extra=environment)
        observe = None if observer is None else partial(observer, group, runlog, plan)
        try:
            watch(group.tend, observe, limit_seconds=limit_seconds, describe=group.logs)
        finally:
            code = group.end()
        return report_or_lost(runlog, plan, TrainerEnd(code))

    def run_to_the_end(self, runlog: RunLog, spec: RunSpec, *, ranks: int) -> list[SegmentReport]:
        """Attempt after attempt until the goal is committed."""
        return attempts_to_the_end(runlog, spec, lambda: self.run_attempt(runlog, spec, ranks=ranks))


def _be_a_rank(folder: str, environment: dict[str, str]) -> None:
    # What torchrun has each of its processes do.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.update(environment)
    output = os.open(Path(folder) / f"rank-{environment['RANK']}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 2)
    sys.argv = ["segue.trainer.main", folder]
    from segue.trainer import main

    os._exit(main.main())
