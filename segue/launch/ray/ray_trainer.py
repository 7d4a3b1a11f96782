"""Runs a trainer on a Ray cluster for a segment. A driver process starts and watches the trainer's actors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from segue.launch.assignment import Assignment
from segue.launch.child import ChildProcess
from segue.launch.launcher import Ending
from segue.launch.output import OnLine
from segue.launch.problem import as_pairs
from segue.launch.ray.driver_status import DriverStatus, StatusFolder
from segue.launch.ray.ray_problems import NOT_INSTALLED, has_ray

_KILL_SECONDS = 30.0
"""Seconds for a driver to kill its ranks. A driver that waits for a silent cluster cannot receive this order."""


class RayTrainer:
    """The trainer of an assignment on a Ray cluster. The class implements `segue.launch.launcher.Trainer`."""

    def __init__(self, assignment: Assignment, *, on_line: OnLine | None = None) -> None:
        """Start the driver. The call returns immediately."""
        self._folder = StatusFolder.make()
        self._code: int | None = None
        self._kill_later: threading.Timer | None = None
        self._last: DriverStatus | None = None
        command = [sys.executable, "-m", "segue.launch.ray.driver", str(self._folder.path)]
        if not has_ray():
            self._folder.write(DriverStatus(code=1, problems=as_pairs([NOT_INSTALLED])))
            command = [sys.executable, "-c", "raise SystemExit(1)"]
        self._child = ChildProcess(command, has_stdin=True, has_output=on_line is not None)
        self._tell(assignment.model_dump_json())
        self._child.relay_to(on_line)

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        return self._child.process.pid

    @property
    def ending(self) -> Ending | None:
        self.poll()
        return None if self._last is None else self._last.ending

    def poll(self) -> int | None:
        code = self._child.process.poll()
        if code is not None and self._code is None:
            self._last = _last_status(self._folder.read(), code)
            self._code = self._last.code
        return self._code

    def why_waiting(self) -> str | None:
        if self.poll() is not None:
            return None
        status = self._folder.read()
        return None if status.has_started else status.why_waiting

    def is_known_to_run(self) -> bool:
        return False  # Its nodes may be gone for minutes before Ray says so. A trainer reports its own hangs.

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._tell(f"give_notice {int(number)}")

    def dump_stacks(self) -> None:
        self._tell("dump_stacks")

    def freeze(self) -> None:
        self._tell("freeze")

    def thaw(self) -> None:
        self._tell("thaw")

    def kill(self) -> None:
        # The driver passes the kill on. If only the driver were killed, the ranks would become orphans, and orphans
        # commit before they end.
        self._tell("kill")
        if self._kill_later is None:
            self._kill_later = threading.Timer(_KILL_SECONDS, self._child.kill)
            self._kill_later.daemon = True
            self._kill_later.start()

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        if self._child.wait(timeout_seconds) is None:
            return None
        code = self.poll()
        if self._kill_later is not None:
            self._kill_later.cancel()
        self._folder.remove()
        assert self._child.process.stdin is not None
        self._child.process.stdin.close()
        return code

    def _tell(self, text: str) -> None:
        pipe = self._child.process.stdin
        assert pipe is not None
        rest = f"{text}\n".encode()
        # The driver has ended, and its exit code shows this. A ValueError means that another call has waited for its
        # end.
        with suppress(BrokenPipeError, ValueError):
            while rest:
                rest = rest[os.write(pipe.fileno(), rest) :]


def _last_status(status: DriverStatus, code: int) -> DriverStatus:
    """Return the final status of an ended driver. A driver that has reported no end was killed."""
    if status.code is not None:
        return status
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    why = ", as Ray does when the cluster's head restarts" if code == -signal.SIGABRT else ""
    return status.model_copy(update={"code": -signal.SIGKILL, "ended": f"its Ray driver {how}{why}"})
