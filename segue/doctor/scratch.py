"""The temporary resources of one invocation's checks: objects below a prefix of its own, and child processes."""

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
"""All invocations write below it; `segue runs` does not list it."""


class Scratch:
    """Objects and child processes of one invocation. `clear` removes those that are left when it is interrupted."""

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}{uuid.uuid4().hex[:12]}/"
        self._keys: set[str] = set()
        self._children: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._starting = threading.Lock()
        """Held from the start of a child until it is known: `clear` kills those that are known."""

    def new_key(self) -> str:
        """A key that no object has. An object that is put there must be removed with `forget`."""
        self._require_open()
        key = f"{self.prefix}{uuid.uuid4().hex}"
        self._keys.add(key)
        return key

    def forget(self, store: Store, *keys: str) -> StoreWriteError | None:
        """Remove these objects; returns why they could not be removed."""
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
        """A child in a session of its own, which is killed after the block with all processes of its group."""
        options = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "pass_fds": pass_fds, "env": environ}
        # In the main thread Ctrl-C may come after the process has started and before Popen has returned it.
        with ThreadPoolExecutor(1) as starter:
            child = starter.submit(self._started, command, options).result()
        try:
            with child:
                try:
                    yield child
                finally:
                    _kill(child)
        finally:
            if child.returncode is not None:  # Otherwise the wait for its end was interrupted, and `clear` waits.
                self._children.discard(child)

    def clear(self, store: Store | None) -> None:
        """Kill the children that still run, and remove the objects that are left. What cannot be removed is named.

        A check that continues in another thread can begin nothing new afterwards. The wait for a store that hangs ends
        after ten seconds.
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
            log.warning("objects stay behind prefix=%s reason=%s", self.prefix, refused)

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
