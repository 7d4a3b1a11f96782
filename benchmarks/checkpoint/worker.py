"""A measured object in a separate process, so that its memory, threads and failures affect no other object. The main
process calls methods of the object in the worker: `worker.run(SaverBench.save, step)`.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from benchmarks.common.child import child_environment
from benchmarks.common.memory import family
from segue.process import ProcessRef

_GRACE_SECONDS = 5.0
_START = "import sys; from benchmarks.checkpoint.worker import serve; serve(int(sys.argv[1]))"


class Bench(Protocol):
    """The interface of an object in a worker."""

    def close(self) -> None:
        """End all helpers, and free all memory."""
        ...


B = TypeVar("B", bound=Bench)
P = ParamSpec("P")
T = TypeVar("T")


class WorkerError(Exception):
    """A call in a worker raised an error, did not return in time, or ended the worker."""

    def __init__(self, *, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class _Answer:
    value: Any = None
    failure: str | None = None


class Worker(Generic[B]):
    """A handle on a process that holds the object from `make(...)`. After a failed call, only `close` may be called."""

    def __init__(self, log: Path, *, limit_seconds: float = 300.0) -> None:
        self._log, self._limit_seconds = log, limit_seconds
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C reaches only the benchmark's main process, and all members can be found.
                start_new_session=True,
                env=child_environment(PYTHONWARNINGS="ignore"),
            )
        self._connection = Connection(ours.detach())
        self.is_sound = True
        """Whether the worker still answers calls."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    def start(cls, make: Callable[P, B], log: Path, *args: P.args, **kwargs: P.kwargs) -> Worker[B]:
        """Start a process that begins to make the object. The call returns at once, so that several processes can start
        together."""
        worker = cls(log)
        worker._send(make, args, kwargs)
        return worker

    def ready(self) -> None:
        """Wait until the object is made.

        Raises:
            WorkerError: the object could not be made.
        """
        self._receive()

    def run(self, task: Callable[Concatenate[B, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the object, by its name in the class, and wait for what it returns.

        Raises:
            WorkerError: the call failed. The error has the last known state of the worker.
        """
        self._send(task, args, kwargs)
        answer: T = self._receive()
        return answer

    def close(self) -> None:
        """Close the object, and end the process and all processes that it started."""
        members = family(self.pid)
        with suppress(OSError):
            if self.is_sound:
                self._connection.send_bytes(b"")
            else:
                self._process.kill()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        _end({*members, *family(self.pid)} - {self.pid if self._process.poll() is not None else 0})
        self._process.wait()

    def _send(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(_Call(function, args, kwargs)))
        except OSError:
            raise self._ended() from None

    def _receive(self) -> Any:
        try:
            if not self._connection.poll(self._limit_seconds):
                raise self._failed(f"did not answer within {self._limit_seconds:.0f} s")
            answer = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - from a process of our own
        except (EOFError, OSError):
            raise self._ended() from None
        except KeyboardInterrupt:
            self.is_sound = False
            raise
        if answer.failure is not None:
            raise WorkerError(why=answer.failure)
        return answer.value

    def _ended(self) -> WorkerError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        return self._failed(f"process ended with {self._process.poll()}: {_last_line(self._log)}")

    def _failed(self, why: str) -> WorkerError:
        self.is_sound = False
        return WorkerError(why=why)


def serve(descriptor: int) -> None:
    """The worker process: answer calls until the connection to the main process ends."""
    connection = Connection(descriptor)
    bench: Bench | None = None
    with suppress(EOFError, OSError):
        while request := connection.recv_bytes():
            call: _Call = pickle.loads(request)  # noqa: S301 - from the process that started this one
            try:
                if bench is None:
                    bench, value = call.function(*call.args, **call.kwargs), None
                else:
                    value = call.function(bench, *call.args, **call.kwargs)
                answer = _Answer(value)
            except BaseException as failure:  # DCP's own errors are no Exceptions.
                answer = _Answer(failure=described(failure))
            connection.send_bytes(pickle.dumps(answer))
    if bench is not None:
        bench.close()


def described(failure: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text[:400]}" if text else type(failure).__name__


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else "its log is empty"


def _end(pids: Iterable[int]) -> None:
    """End all remaining processes of a worker, because some savers leave helpers that wait for ever."""
    left = set(pids)
    give_up_at = time.monotonic() + _GRACE_SECONDS
    while left and time.monotonic() < give_up_at:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        left = {pid for pid in left if ProcessRef.of(pid).is_alive()}
