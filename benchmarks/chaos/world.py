"""The world of a chaos benchmark: a Prefect, stores, lanes of runs, and the current faults."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError

from benchmarks.chaos import processes
from benchmarks.chaos.gate import OPEN, Gate
from benchmarks.chaos.places import Place, folder_place, s3_place
from benchmarks.chaos.runs import Lane, LiveRun
from benchmarks.chaos.stack import ChaosStack, Recovery, ServiceManager, is_alive
from segue.deployments.local_stack.registration import UNFINISHED
from segue.testing.metadata import NO_SERVICE

_LEFT_SECONDS = 60.0
"""Time in which the processes of ended runs must end."""
_STATES_SECONDS = 120.0
"""Additional time for which Prefect may show flow runs as running, because recovery waits for a minute before it sets a
state."""
_TICK_SECONDS = 0.2
_LANES = ("folder", "s3", "folder")

T = TypeVar("T")
Say = Callable[[str], None]


class NotNowError(Exception):
    """A fault has no target at this moment."""


class World:
    """The objects that faults act on. Only one thread uses the world, and `tick` lets time pass."""

    def __init__(self, stack: ChaosStack, *, gate: Gate, places: Sequence[Place], say: Say, lanes: int) -> None:
        self.stack, self.gate, self.places = stack, gate, tuple(places)
        self.services, self.recovery = ServiceManager(stack), Recovery(stack)
        self.starts_new = True
        self._taken: set[str] = set()
        self._suspended: list[psutil.Process] = []
        by_name = {place.name: place for place in places}
        numbers = count()
        names = [_LANES[index % len(_LANES)] for index in range(lanes)]
        self.lanes = [Lane(by_name[name], ask=self.ask, next_number=lambda: next(numbers), say=say) for name in names]

    def tick(self) -> None:
        """Restart services and update runs. The call takes at least a fifth of a second."""
        self.services.tick(kept_down=self._taken)
        self.recovery.tick()
        for lane in self.lanes:
            lane.tick(starts_new=self.starts_new, can_write=lane.place.name not in self._taken)
        time.sleep(_TICK_SECONDS)

    @property
    def live(self) -> list[LiveRun]:
        """The runs that have been started and have not ended."""
        return [lane.current for lane in self.lanes if lane.current is not None and lane.current.starts]

    @property
    def runs(self) -> list[LiveRun]:
        """Every run so far."""
        return [run for lane in self.lanes for run in (*lane.ended, *([lane.current] if lane.current else []))]

    def take(self, name: str) -> None:
        """Reserve a target for one fault, because two faults on one target would undo each other.

        Raises:
            NotNowError: another fault has the target.
        """
        if name in self._taken:
            raise NotNowError
        self._taken.add(name)

    def release(self, name: str) -> None:
        self._taken.discard(name)

    def ask(self, request: Callable[[SyncPrefectClient], object]) -> None:
        """Make a request to the server, past the gate."""
        with self.stack.direct() as client:
            request(client)

    def suspend(self, found: Sequence[psutil.Process]) -> Callable[[], None]:
        """Send SIGSTOP to each process. Return a function that continues the processes that still exist."""
        self._suspended += found
        _send(found, signal.SIGSTOP)

        def resume() -> None:
            _send(found, signal.SIGCONT)
            self._suspended = [process for process in self._suspended if process not in found]

        return resume

    def settle(self, limit_seconds: float) -> None:
        """Start no further runs, and wait until all have ended or the limit is reached."""
        self.starts_new = False
        for lane in self.lanes:
            if lane.current is not None and not lane.current.starts:
                lane.current = None
        give_up_at = time.monotonic() + limit_seconds
        while self.live and time.monotonic() < give_up_at:
            self.tick()

    def left_processes(self) -> list[str]:
        """Processes of flow runs that still run although all flow runs should have ended."""
        give_up_at = time.monotonic() + _LEFT_SECONDS
        while (left := processes.of_flow_runs(self.stack.api_url)) and time.monotonic() < give_up_at:
            self.tick()
        return processes.in_words(left)

    def open_flow_runs(self) -> list[str]:
        """Flow runs that Prefect shows as waiting or running after all runs have ended. The call waits a while for the
        last flow runs."""
        give_up_at = time.monotonic() + _STATES_SECONDS
        wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNFINISHED))))
        found: list[FlowRun] = []
        while time.monotonic() < give_up_at:
            with suppress(httpx.HTTPError, PrefectHTTPStatusError):
                self.ask(lambda client: found.__setitem__(slice(None), client.read_flow_runs(flow_run_filter=wanted)))
                if not found:
                    break
            self.tick()
        return [f"{run.name} is {run.state_name}" for run in found]

    def close(self) -> None:
        """End the processes that the stack does not end itself, and continue suspended processes."""
        self.gate.behave(OPEN)
        _send(self._suspended, signal.SIGCONT)
        self.recovery.kill()


@contextmanager
def world_in(folder: Path, *, say: Say, lanes: int) -> Iterator[World]:
    """A world below `folder`. At the end, even after an error, no process runs and nothing is mounted."""
    with ExitStack() as ending:
        places: list[Place] = [ending.enter_context(folder_place(folder / "local"))]
        if lanes > 1:
            places.append(ending.enter_context(s3_place()))
        for place in places:
            place.store().check()
        port = 0
        gate = ending.enter_context(Gate(lambda: stack.port or port))
        stack = ChaosStack(folder / "prefect", gate=gate, variables=NO_SERVICE, say=say)
        ending.callback(stack.stop)
        stack.start()
        world = World(stack, gate=gate, places=places, say=say, lanes=lanes)
        ending.callback(world.close)
        yield world


def picked(found: Sequence[T], pick: int) -> T:
    """Choose one of the possible targets of a fault.

    Raises:
        NotNowError: there is no target.
    """
    if not found:
        raise NotNowError
    return found[pick % len(found)]


def _send(found: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in found:
        with suppress(psutil.Error):
            process.send_signal(number)


def kill(found: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to each process.

    Raises:
        NotNowError: no process is alive.
    """
    if not any(is_alive(process) for process in found):
        raise NotNowError
    _send(found, signal.SIGKILL)
