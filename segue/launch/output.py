"""Handles the output of a trainer: keeps pipes from ending or slowing down their writer, and chooses the lines to show.

The reader of a pipe (engine, worker, terminal) may end. Without this module, the next print of the writer would then
fail.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import termios
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NamedTuple

from segue.clock import SystemClock
from segue.credentials import redacted
from segue.process import Parent, ProcessRef

log = logging.getLogger(__name__)

_STANDARD_STREAMS = (1, 2)
_LOCK, _SURVIVING = threading.Lock(), set[int]()
_POLL_SECONDS = 0.5
_FULL_POLLS = 4
"""Number of polls with a full pipe after which the pipe counts as unread."""
_MOST_WAITING = 1_000
"""Maximum number of lines that wait to be shown. Older lines are dropped."""
_MOST_LINE_CHARACTERS = 4_000
_BURST_LINES = 500
_LINES_PER_SECOND = 20.0
_END_SECONDS = 5.0
_LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_KEPT, _QUOTED, _MOST_CHARACTERS = 200, 3, 300
_SAYS_WHY = re.compile(
    r"terminate called|what\(\):|Fatal Python error|Assertion .* failed|(^|[\s.])\w*(Error|Exception)(:|$)"
)
"""Error lines of C++, of Python's fault handler, and of Python tracebacks."""


class Line(NamedTuple):
    """One line of a trainer's output, with the log level at its beginning. Without a log level, the level is INFO."""

    level: int
    text: str


OnLine = Callable[[Line], None]
"""A function that segue calls with each shown line.

If the function raises an error, segue continues to read the output.
"""


def survive_broken_output(owner: ProcessRef | None = None) -> None:
    """Make writes to standard output and error succeed even if no process reads them any longer.

    Use this function for a process whose output goes through a pipe to its parent or to `owner`. The process keeps its
    own pipes open for reading. If the reader has ended, or has not read a full pipe for two seconds, the process
    empties the pipe. The output in the pipe is then lost. The call has no effect if the output is a file, or if there
    is no /proc. A second call has no effect, because a process may run many flows.
    """
    with _LOCK:
        if os.getpid() in _SURVIVING:  # A fork inherits the set, not the thread.
            return
        _SURVIVING.add(os.getpid())
    ends = [end for end in map(_reading_end, _STANDARD_STREAMS) if end is not None]
    if not ends:
        return
    parent = Parent()

    def has_reader() -> bool:
        return parent.is_alive() and (owner is None or owner.is_alive())

    threading.Thread(target=_empty, args=(ends, has_reader), name="segue-output", daemon=True).start()


class Relay:
    """Reads the output of a process without delay, and passes lines on at a limited rate.

    The relay hides secrets of this process's environment. If a program redraws a line with carriage returns, like a
    progress bar, the relay shows only the line's last state. After the first 500 lines, the relay shows at most 20
    lines a second. It drops the other lines, and counts them.
    """

    def __init__(self, stream: IO[bytes], on_line: OnLine) -> None:
        self._stream, self._on_line = stream, on_line
        self._clock = SystemClock()
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._has_ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="segue-output-reader", daemon=True)
        self._shower = threading.Thread(target=self._show, name="segue-output-lines", daemon=True)
        self._reader.start()
        self._shower.start()

    def close(self) -> None:
        """Wait for at most a few seconds until the relay has passed on all written output."""
        self._reader.join(_END_SECONDS)
        self._shower.join(_END_SECONDS)

    def _read(self) -> None:
        rest = b""
        with self._stream, suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 65536):
                *lines, rest = (rest + chunk).split(b"\n")
                # A progress bar never ends its line: only its last state is kept.
                rest = rest.rpartition(b"\r")[2] if len(rest) > _MOST_LINE_CHARACTERS else rest
                self._add([_text(line) for line in lines])
        self._add([_text(rest)] if rest else [], is_end=True)

    def _add(self, lines: list[str], *, is_end: bool = False) -> None:
        with self._changed:
            self._waiting.extend(lines)
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._has_ended = is_end
            self._changed.notify()

    def _show(self) -> None:
        allowance, at = float(_BURST_LINES), self._clock.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._dropped or self._has_ended)
                now = self._clock.monotonic()
                allowance = min(allowance + (now - at) * _LINES_PER_SECOND, float(_BURST_LINES))
                at = now
                shown, dropped = self._take(int(allowance))
                is_over = self._has_ended and not self._waiting
            allowance -= len(shown)
            for text in shown:
                self._pass_on(text)
            if dropped:
                self._pass_on(f"WARNING {dropped} lines of output not shown limit={_LINES_PER_SECOND:g} lines a second")
            if is_over:
                return
            if allowance < 1:
                self._clock.sleep(1.0)

    def _take(self, most: int) -> tuple[list[str], int]:
        """Take the next lines to show. At the end of the output, take the newest lines, which name the cause of the
        end.
        """
        if self._has_ended:
            most = max(most, int(_LINES_PER_SECOND) * 5)
            while len(self._waiting) > most:
                self._waiting.popleft()
                self._dropped += 1
        dropped, self._dropped = self._dropped, 0
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))], dropped

    def _pass_on(self, text: str) -> None:
        try:
            self._on_line(line_of(redacted(text)))
        except (Exception, SystemExit):
            # Catch any exception, and the SystemExit of a console whose pipe broke. If a line cannot be shown, the
            # process that watches the trainer must not end. The trainer must not end either, and it would block at a
            # full pipe.
            with suppress(Exception, SystemExit):
                log.debug("could not show a line of the trainer's output", exc_info=True)


def line_of(text: str) -> Line:
    """Return the line to show, and the log level at its start. If carriage returns redraw the line, only the newest
    text is shown. A long line is shortened.
    """
    text = text.rstrip("\r").rpartition("\r")[2]
    found = _LEVEL.match(text)
    level = logging.getLevelNamesMapping()[found[1]] if found else logging.INFO
    cut = len(text) - _MOST_LINE_CHARACTERS
    return Line(level, f"{text[:_MOST_LINE_CHARACTERS]} ... ({cut} more characters)" if cut > 0 else text)


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _reading_end(descriptor: int) -> int | None:
    """Open a reading end of the pipe at `descriptor`. Return None if the descriptor is not a pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
        # Opening the pipe by its name in /proc gives a new end, even if the descriptor is the other end.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def _empty(ends: list[int], has_reader: Callable[[], bool]) -> None:
    full = dict.fromkeys(ends, 0)
    while True:
        is_read = has_reader()
        for end in ends:
            full[end] = full[end] + 1 if _is_full(end) else 0
            if not is_read or full[end] >= _FULL_POLLS:
                with suppress(BlockingIOError):
                    while os.read(end, 1 << 20):
                        pass
        SystemClock().sleep(_POLL_SECONDS if is_read else _POLL_SECONDS / 10)


def _is_full(end: int) -> bool:
    capacity = fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
    waiting = int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, b"\0\0\0\0"), "little")
    # A write that does not fit leaves less than a page free.
    return waiting > capacity - 4096


class LastLines:
    """Passes lines on, and keeps the newest lines."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=_KEPT)

    def __call__(self, line: Line) -> None:
        self._kept.append(line.text)
        self._on_line(line)

    def newest(self, count: int) -> list[str]:
        """Return at most `count` of the newest lines."""
        return list(self._kept)[-count:]

    def why(self) -> str:
        """Return the newest lines that name a cause. If no line names a cause, return the newest lines.

        The result is empty if there was no output.
        """
        lines = [text.strip() for text in list(self._kept) if text.strip()]
        quoted = [text for text in lines if _SAYS_WHY.search(text)] or lines
        return " | ".join(text[:_MOST_CHARACTERS] for text in quoted[-_QUOTED:])
