"""A real Slurm cluster on this machine, and attempts that run on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from segue.clock import SystemClock
from segue.controller.segment import NoticeRelay, run_attempt
from segue.controller.steps import decide_next
from segue.records import Machine, MachineCheck, SegmentPlan, SegmentReport
from segue.runlog.entries import MachineEntry
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from tests.launch.slurm.virtual_cluster import INSTALL, SlurmCluster, missing

LONG = {"steps": 100_000, "config": {"pause_seconds": 0.02}}


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())}; {INSTALL}")
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=2)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(started: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster of two nodes with one core each, on which nothing runs."""
    monkeypatch.setenv("SLURM_CONF", str(started.conf))
    yield started
    started.clear()


@pytest.fixture
def make_slurm_spec(make_spec: Callable[..., RunSpec], tmp_path: Path) -> Callable[..., RunSpec]:
    def make(slurm: dict[str, Any] | None = None, **fields: Any) -> RunSpec:
        table = {"spot": "spot", "on_demand": "ondemand", "folder": str(tmp_path / "jobs")} | (slurm or {})
        # Many processes start on few cores: the heartbeat must not be what a busy machine fails.
        return make_spec(**{"liveness": {"heartbeat_seconds": 0.2}, "grace_seconds": 20.0, "slurm": table} | fields)

    return make


class Attempt:
    """An attempt that a segment makes, in a thread of its own."""

    def __init__(self, spec: RunSpec, runlog: RunLog, plan: SegmentPlan) -> None:
        self.spec, self.runlog, self.plan = spec, runlog, plan
        self.lines: list[str] = []
        self.relay = NoticeRelay()
        self._report: SegmentReport | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._report = run_attempt(
            self.spec,
            self.plan,
            relay=self.relay,
            requests=self,
            clock=SystemClock(),
            on_line=lambda line: self.lines.append(line.text),
        )

    def look(self) -> None:
        return

    def was_cancelled(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def step(self) -> int:
        """The step of its newest heartbeat while it trains."""
        attempt = read_history(self.runlog.reload()).attempt_of(self.plan.segment, self.plan.attempt)
        beat = last_heartbeat(self.runlog, attempt)
        return beat.step if beat is not None and beat.phase == "training" else 0

    def report(self, seconds: float = 120.0) -> SegmentReport:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "\n".join(self.lines)
        assert self._report is not None
        return self._report


def record_unfit(runlog: RunLog, machine: Machine) -> None:
    """Write what a trainer writes whose machine failed the check."""
    check = MachineCheck(seconds=0.0, results={}, problems=("disk: full",))
    facts = {"segment": 0, "attempt": 1, "deployment": "segment/spot", "machine": machine, "machine_check": check}
    runlog.append(lambda stamp: MachineEntry.model_validate(stamp(epoch=0) | facts))


@pytest.fixture
def start(cluster: SlurmCluster, open_log: Callable[[RunSpec], RunLog]) -> Iterator[Callable[..., Attempt]]:
    """Starts the next attempt of a run; it is given a notice and waited for when the test ends."""
    yield from starting_attempts(open_log, at_end=cluster.clear)


def starting_attempts(
    open_log: Callable[[RunSpec], RunLog], *, at_end: Callable[[], object] = lambda: None
) -> Iterator[Callable[..., Attempt]]:
    """What starts the next attempt of a run; at the end each gets a notice and is waited for."""
    attempts: list[Attempt] = []

    def make(spec: RunSpec) -> Attempt:
        runlog = open_log(spec)
        plan = decide_next(runlog, spec, clock=SystemClock()).plan
        assert plan is not None
        attempts.append(Attempt(spec, runlog, plan))
        return attempts[-1]

    yield make
    at_end()
    for attempt in attempts:
        attempt.relay.give()
        attempt.report()
