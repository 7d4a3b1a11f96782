"""Classifies an exception of the user's code: a lack of memory, a temporary problem, or a fault of the code."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator

from segue.credentials import redacted
from segue.errors import (
    DataUnreadableError,
    HungRankError,
    NonDeterministicOperationError,
    RankFailedError,
    RehearsalError,
    SegueError,
)
from segue.launch.memory import MemoryKills
from segue.records import CodeFailure, StopReason
from segue.user_objects import attribute, text_of
from segue.user_objects.users_files import users_line

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
"""Type names of out-of-memory errors: Python's own type, and torch's type for accelerators."""
_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|\[Errno 12\]"
    r"|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
)
"""Messages of errors that have no separate exception type."""
_DEVICE_ERRORS = frozenset({46, 100, 101, 214, 220, 802, 999})
"""CUDA error codes of a failed device. Some codes mean that the device is unavailable, absent or invalid. Some codes
mean an uncorrectable error in memory or in a link. Other codes mean that the system is not ready, or that the driver
does not know the error (the device may have fallen off the bus). Source: cudaError in the CUDA Runtime API."""
_DEVICE_MESSAGE = re.compile(
    r"CUDA error: (uncorrectable (ECC|NVLink) error|no CUDA-capable device|invalid device ordinal|unknown error"
    r"|CUDA-capable device\(s\) is/are busy or unavailable|system not yet initialized)"
)
"""Messages of errors of a failed device. These messages identify the error if torch gives no error code."""
_NETWORK_TYPE = re.compile(r"Timeout|TimedOut|Connect|Network|Transport|Incomplete|Throttl|Unavailable|ServerError")
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid.*(exited unexpectedly|killed by signal)")
"""Message about a dead data loader worker. torch raises a plain RuntimeError with this message."""


_NO_KERNEL = re.compile(
    r"(?P<name>\S+)( with \S+)? does not have a deterministic implementation"
    r"|Deterministic behavior was enabled with .* but this operation is not deterministic because it uses (?P<by>\w+)"
)
"""Messages about operations that have no deterministic kernel."""


def without_traceback(error: BaseException) -> SegueError | None:
    """Return an error whose message is more helpful than the traceback; None if the traceback is needed."""
    if isinstance(error, RehearsalError):
        return error
    found = _NO_KERNEL.search(text_of(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return None
    where = users_line("".join(traceback.format_exception(error)))
    return NonDeterministicOperationError(operation=found["name"] or f"an operation of {found['by']}", where=where)


def stop_reason(error: BaseException, *, kills_before: MemoryKills) -> StopReason:
    """Return the stop reason of an attempt that this exception of the user's code has ended."""
    if isinstance(error, HungRankError):
        return StopReason.HUNG
    if _is_out_of_memory(error):
        return StopReason.OUT_OF_MEMORY
    if any(map(is_of_device, _chain(error))):
        return StopReason.LOST
    # The kernel may have killed a worker of the data loader. The worker is in the control group of this process.
    is_worker = is_dead_worker(text_of(error))
    if kills_before.evidence(MemoryKills.now(), was_killed=is_worker and kills_before.group is None) is not None:
        return StopReason.OUT_OF_MEMORY
    return StopReason.FAILED


def is_of_device(error: BaseException) -> bool:
    """Whether the device has failed, and not the code. After a device failure, the same step can succeed on another
    machine."""
    name = error.type_name if isinstance(error, RankFailedError) else type(error).__name__
    code = attribute(error, "error_code")
    if name == "AcceleratorError" and isinstance(code, int):
        return code in _DEVICE_ERRORS
    return name == "AcceleratorError" and _DEVICE_MESSAGE.search(text_of(error)) is not None


def failure_of(error: BaseException) -> CodeFailure:
    """Make the failure that a person sees: the traceback of the recipe's code, or the message of a segue error.

    In the traceback and the message, secrets from the environment are hidden, because segue stores the failure.
    """
    if isinstance(error, RankFailedError):
        name = f"{error.type_name} on rank {error.rank}"
        message, shown = redacted(error.message), redacted(error.traceback)
        return CodeFailure(type=name, message=message, traceback=shown, is_transient=error.is_transient)
    message = text_of(error)
    shown = message if isinstance(error, SegueError) else "".join(traceback.format_exception(error))
    return CodeFailure(
        type=type(error).__name__,
        message=redacted(message),
        traceback=redacted(shown),
        is_transient=is_transient(error),
    )


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help. A retry may help if an I/O operation, a network connection or a worker process failed.

    A wrong path or a missing permission is not transient. Errors of other libraries are transient if the names of their
    types contain a word for a connection, a time-out or an unavailable service.
    """
    if isinstance(error, SegueError) and not isinstance(error, DataUnreadableError):
        return isinstance(error, RankFailedError) and error.is_transient
    if is_dead_worker(text_of(error)):
        return True
    return any(_is_transient_alone(each) for each in _chain(error))


def is_dead_worker(message: str) -> bool:
    """Whether this message is torch's message about a dead data loader worker."""
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
        return error.errno == errno.ENOMEM  # For example, there was no memory for a fork.
    if any(kind.__name__ in _OUT_OF_MEMORY_TYPES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY_MESSAGE.search(text_of(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and the errors from which it was explicitly raised."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
