"""What an exception of the user's code means for the run: out of memory, transient, or a fault of the code."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator

from segue.credentials import redacted
from segue.errors import DataUnreadableError, HungRankError, RankFailedError, SegueError
from segue.launch.memory import MemoryKills
from segue.records import CodeFailure, StopReason

_PERMANENT_TYPES = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ChildProcessError,
    ProcessLookupError,
)
_PERMANENT_NUMBERS = frozenset(
    {errno.EINVAL, errno.ENAMETOOLONG, errno.EROFS, errno.ENOEXEC, errno.EBADF, errno.ENOTSUP, errno.ENODEV}
)
_OUT_OF_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError")
"""Python's own, and torch's for accelerators."""
_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|\[Errno 12\]"
    r"|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
)
"""For these conditions there is no type of their own, only a message."""
_NETWORK_TYPE = re.compile(r"Timeout|TimedOut|Connect|Network|Transport|Incomplete|Throttl|Unavailable|ServerError")
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid.*(exited unexpectedly|killed by signal)")
"""torch has no type for this condition, only a RuntimeError with this message."""


def stop_reason(error: BaseException, *, kills_before: MemoryKills) -> StopReason:
    """The reason of an attempt that ended with this exception of the user's code."""
    if isinstance(error, HungRankError):
        return StopReason.HUNG
    if _is_out_of_memory(error):
        return StopReason.OUT_OF_MEMORY
    # The kernel may have killed a worker of the data loader instead of this process.
    is_worker = is_dead_worker(str(error))
    if kills_before.has_grown_to(MemoryKills.now(), was_killed=is_worker):
        return StopReason.OUT_OF_MEMORY
    return StopReason.FAILED


def failure_of(error: BaseException) -> CodeFailure:
    """The failure as a person sees it: the traceback of the recipe's code, or the sentence of a segue error.

    It is stored, so secrets of the environment are hidden in it.
    """
    if isinstance(error, RankFailedError):
        name = f"{error.type_name} on rank {error.rank}"
        message, shown = redacted(error.message), redacted(error.traceback)
        return CodeFailure(type=name, message=message, traceback=shown, is_transient=error.is_transient)
    shown = str(error) if isinstance(error, SegueError) else "".join(traceback.format_exception(error))
    return CodeFailure(
        type=type(error).__name__,
        message=redacted(str(error)),
        traceback=redacted(shown),
        is_transient=is_transient(error),
    )


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help: input and output, a network, or a worker process failed.

    An error that names a wrong path or a missing right is not transient. Of other libraries' errors, the ones count
    that their types call a connection, a time-out or an unavailable service.
    """
    if isinstance(error, SegueError) and not isinstance(error, DataUnreadableError):
        return isinstance(error, RankFailedError) and error.is_transient
    if is_dead_worker(str(error)):
        return True
    return any(_is_transient_alone(each) for each in _chain(error))


def is_dead_worker(message: str) -> bool:
    """Whether this is torch's message about a worker of its data loader that died."""
    return _DEAD_WORKER.search(message) is not None


def _is_transient_alone(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, _PERMANENT_TYPES) and error.errno not in _PERMANENT_NUMBERS
    kinds = (kind for kind in type(error).__mro__ if kind.__module__.partition(".")[0] not in ("builtins", "torch"))
    return any(_NETWORK_TYPE.search(kind.__name__) for kind in kinds)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, RankFailedError):
        return error.type_name in _OUT_OF_MEMORY_TYPES or _OUT_OF_MEMORY_MESSAGE.search(error.message) is not None
    return any(_is_out_of_memory_alone(each) for each in _chain(error))


def _is_out_of_memory_alone(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM  # As of a fork for which there is no memory.
    if any(kind.__name__ in _OUT_OF_MEMORY_TYPES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY_MESSAGE.search(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those it was explicitly raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
