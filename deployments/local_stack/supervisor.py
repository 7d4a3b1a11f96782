"""Runs the parent process of a local Prefect installation: starts processes for an owner, and ends them with the owner.

The owner holds the other end of the supervisor's standard input. The pipe closes when the owner closes it, returns,
crashes or is killed with SIGKILL. Therefore no process of the installation outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_SERVICE_SECONDS = 3.0
"""Seconds from SIGTERM to SIGKILL for a server or a worker."""
_ROUNDS = 5
"""Number of searches for new processes, because some may have started while the supervisor ended the others."""


def main() -> None:
    """Read one JSON order per line from standard input. At the end of the input, end all processes.

    An order either imports a module for forked processes, or starts a process, which may be a fork of this process. The
    answer to a start is the process id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The owner handles Ctrl-C on the terminal.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGCHLD, _reap)
    _adopt_orphans()
    forked = _supervise(grace_seconds=float(sys.argv[1]))
    if forked is not None:
        forked()


def _supervise(*, grace_seconds: float) -> Callable[[], None] | None:
    """Carry out orders until standard input ends, then end all processes.

    In a forked service, return the function that runs the service.
    """
    supervisor, services = os.getpid(), list[int]()
    try:
        while line := sys.stdin.readline():
            order = json.loads(line)
            if "imported" in order:
                importlib.import_module(order["imported"])
                continue
            pid = _fork(order["module"]) if order.pop("is_forked") else _start(**order)
            if pid == 0:
                return partial(_become, **order)
            services.append(pid)
            with contextlib.suppress(BrokenPipeError):  # The owner is gone; the next read returns.
                os.write(sys.stdout.fileno(), f"{pid}\n".encode())
    finally:
        if os.getpid() == supervisor:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_all(services, grace_seconds=grace_seconds)
    return None


def end_all(services: list[int], *, grace_seconds: float) -> None:
    """End all descendants of this process: first flow runs and trainers, then the services, and last the server.

    In this order, flow runs can report their last state to the server. Trainers get `grace_seconds` to commit a
    checkpoint.
    """
    _end_others(keep=services, grace_seconds=grace_seconds)
    _end_others(keep=services[:1], grace_seconds=_SERVICE_SECONDS)
    _end_others(keep=[], grace_seconds=_SERVICE_SECONDS)


def _end_others(*, keep: list[int], grace_seconds: float) -> None:
    for _ in range(_ROUNDS):
        processes = [p for p in psutil.Process().children(recursive=True) if p.pid not in keep]
        if not processes:
            return
        _send(processes, signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
        _send(alive, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=grace_seconds)


def _start(module: str, arguments: list[str], log: str) -> int:
    argv = [sys.executable, "-m", module, *arguments]
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    process.returncode = 0  # _reap waits, so Popen must not wait.
    return process.pid


def _fork(module: str) -> int:
    """Import the module, and fork this process. Return the process id of the fork, or 0 in the fork."""
    importlib.import_module(module)
    return os.fork()


def _become(module: str, arguments: list[str], log: str) -> None:
    """Run a module's `main` in a forked process, as in a separately started process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    with Path(log).open("ab") as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    _prctl(_PR_SET_NAME, Path(log).stem.encode())
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


def _send(processes: list[psutil.Process], signum: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


def _adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, instead of init, so that it can find and end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _reap(signum: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
