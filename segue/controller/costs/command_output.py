"""The output of a command of the user's, which may fail, hang, or print without end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress

from segue.credentials import redacted_end

_LAST_CHARACTERS, _LAST_BYTES = 200, 64 * 1024
"""How much of a failed command's message is shown, and how much is read: it is redacted before it is cut."""


class CommandFailedError(Exception):
    """The command gave no usable output. Its message is in the reason, without secrets."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


def output_of(command: str, *, timeout_seconds: float, most_bytes: int) -> bytes:
    """The first bytes that a shell command prints. All of its processes are gone when this returns.

    Raises:
        CommandFailedError: it cannot be started, ends with another code than 0, or takes longer.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            # Files, not pipes: a process that the command leaves behind would hold a pipe open for ever.
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailedError(f"no shell starts here ({error.strerror})") from None
        try:
            code: int | None = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        data = output.read(most_bytes)
        errors.seek(max(errors.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
        said = redacted_end(errors.read(), most_characters=_LAST_CHARACTERS)
    if code is None:
        raise CommandFailedError(f"the command did not end within {timeout_seconds:g} s{_quoted(said)}")
    if code != 0:
        raise CommandFailedError(f"the command ended with code {code}{_quoted(said)}")
    return data


def _quoted(said: str) -> str:
    return f" and said {said!r}" if said else ""
