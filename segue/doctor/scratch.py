"""Manages the temporary resources of one run of the doctor: objects below a separate prefix, and child processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any

from segue.stores import Store, StoreWriteError

log = logging.getLogger(__name__)

_CLEAR_SECONDS = 10.0
PREFIX = ".segue-check/"
"""Prefix of all objects that the doctor writes. `segue runs` ignores this prefix."""


class Scratch:
    """The objects and child processes of one run of the doctor.

    After an interruption, `clear` removes the remaining objects and child processes.
    """

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}{uuid.uuid4().hex[:12]}/"
        self._keys: set[str] = set()
        self._children: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._starting = threading.Lock()
        """Lock from the start of a child until its registration, because `clear` kills only registered children."""

    def new_key(self) -> str:
        """Return a new key. The caller must remove the key's object with `forget`."""
        self._require_open()
        key = f"{self.prefix}{uuid.uuid4().hex}"
        self._keys.add(key)
        return key

    def forget(self, store: Store, *keys: str) -> StoreWriteError | None:
        """Remove these objects. If the store cannot remove the objects, return the error."""
        try:
            store.delete(list(keys))
        except StoreWriteError as error:
            return error
        self._keys.difference_update(keys)
        return None

    @contextmanager
    def child(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[str]]:
        """Provide a child process in its own session.

        The end of the block kills the child and all processes of its group.
        """
        options = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "pass_fds": pass_fds, "env": environ}
        # In the main thread, Ctrl-C may come after the start of the process and before Popen returns.
        with ThreadPoolExecutor(1) as starter:
            child = starter.submit(self._started, command, options).result()
        try:
            with child:
                try:
                    yield child
                finally:
                    _kill(child)
        finally:
            if child.returncode is not None:  # Otherwise the wait for its end was interrupted; `clear` waits for it.
                self._children.discard(child)

    def clear(self, store: Store | None) -> None:
        """Kill the children that still run, and remove the remaining objects.

        If the store cannot remove the objects, log the problem. If the store hangs, give up after ten seconds. After
        `clear`, a check that still runs in another thread cannot create children or objects.
        """
        with self._starting:
            self._is_over = True
        for child in list(self._children):
            _kill(child)
            child.wait()
        keys = list(self._keys)
        if store is None or not keys:
            return
        found: list[StoreWriteError | None] = []
        work = threading.Thread(target=lambda: found.append(self.forget(store, *keys)), daemon=True)
        work.start()
        work.join(_CLEAR_SECONDS)
        refused = found[0] if found else f"the store has not answered for {_CLEAR_SECONDS:g} s"
        if refused is not None:
            log.warning("objects could not be removed prefix=%s reason=%s", self.prefix, refused)

    def _started(self, command: Sequence[str], options: Mapping[str, Any]) -> subprocess.Popen[str]:
        with self._starting:
            self._require_open()
            child = subprocess.Popen(command, start_new_session=True, text=True, **options)
            self._children.add(child)
            return child

    def _require_open(self) -> None:
        if self._is_over:
            raise InterruptedError("the checks were interrupted")


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
