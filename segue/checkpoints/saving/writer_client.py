"""Writes shards in the calling thread or in a writer process. If a writer process dies, it is started again."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from segue.checkpoints.format.index import Base
from segue.checkpoints.format.layout import ShardLayout
from segue.checkpoints.format.limits import refuse_too_large_index
from segue.checkpoints.format.snapshot import as_json
from segue.checkpoints.saving import ipc
from segue.checkpoints.saving.ipc import StagingBuffer
from segue.checkpoints.saving.staging import Staged
from segue.checkpoints.saving.write import Bases, write_checkpoint
from segue.checkpoints.saving.written import Save, Written
from segue.errors import WriterDiedError
from segue.spec import StoreSpec
from segue.stores.base import Store, StoreWriteError

log = logging.getLogger(__name__)

_END_SECONDS = 5.0
_STARTS = 3
"""Maximum number of starts of the writer process. If the process dies this often, more starts would not help.
"""
_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class ShardWriter(Protocol):
    """Writes staged states to the stores."""

    def wait_until_ready(self) -> None:
        """Block until the writer can write.

        Raises:
            WriterDiedError: the writer process ended before it was ready.
        """
        return

    def remember(self, step: int, base: Base) -> None:
        """Add a base for saves whose `base_step` is `step`. Another process wrote the checkpoint of this base."""
        ...

    def write(self, staged: Staged, save: Save) -> Written | None:
        """Write the save, and block until the bytes are durable.

        The writer may leave out tensors that have not changed since the base of the save. If several ranks save
        together and one rank gave up this save, the method returns None.

        Raises:
            StoreWriteError: the durable store could not be written. It is safe to call the method again.
            WriterDiedError: the writer process has ended. The next call starts another process.
            StateTooLargeError: the state is too large to be read back. Nothing was written.
        """
        ...

    def give_up(self, step: int) -> None:
        """Tell other ranks that this rank writes nothing for this step. A writer of one rank does nothing."""
        return

    def stop_waiting(self) -> None:
        """Give up saves for which another rank has not stored its part. A writer of one rank does nothing."""
        return

    def close(self) -> None:
        """End the writer, and abandon a write that is in progress."""
        return


class InlineWriter(ShardWriter):
    """Writes in the calling thread.

    Use this class for a store that exists only in this process, and for short-lived tools.
    """

    def __init__(self, tiers: Sequence[Store], *, rank: int = 0) -> None:
        self._tiers, self._rank = tiers, rank
        self._bases = Bases()

    def remember(self, step: int, base: Base) -> None:
        self._bases.keep(step, base)

    def write(self, staged: Staged, save: Save) -> Written:
        skeletons = _skeletons(staged)
        written, base = write_checkpoint(
            self._tiers,
            save,
            rank=self._rank,
            try_number=save.first_try,
            partition_hash=staged.partition_hash,
            shard_file=memoryview(staged.staging_buffer.memory)[: staged.layout.size_bytes],
            shard_layout=staged.layout,
            skeletons=skeletons,
            base=self._bases.get(save.base_step),
        )
        self._bases.keep(save.step, base)
        return written


class ProcessWriter(ShardWriter):
    """Writes in a separate process."""

    def __init__(self, stores: Sequence[StoreSpec], *, rank: int = 0) -> None:
        self._stores, self._rank = stores, rank
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._first_try = (-1, 0)
        """Step of the newest save, and the number of writer processes that were started before its first try."""
        self._channel: socket.socket | None = None
        self._known: dict[int, tuple[StagingBuffer, ShardLayout]] = {}
        self._is_ready, self._closed = False, threading.Event()
        # The folder of a store may be relative, and the program may change its working folder.
        self._folder = Path.cwd()
        self._inherited: tuple[int, Base] | None = None
        self._start()

    @property
    def pid(self) -> int:
        """The id of the writer process."""
        assert self._process is not None
        return self._process.pid

    def write(self, staged: Staged, save: Save) -> Written:
        skeletons = _skeletons(staged)
        self.wait_until_ready()
        if self._first_try[0] != save.step:
            self._first_try = (save.step, self._starts)
        try:
            answer = self._ask(staged, skeletons, save)
        except OSError as error:
            raise self._died(str(error)) from None
        if answer is None:
            raise self._died("it ended")
        if answer["kind"] == "refused":
            raise StoreWriteError(url=self._stores[-1].url, key=answer["key"], why=answer["why"])
        if answer["kind"] != "written":
            raise self._died(answer["why"])
        return Written.from_json(answer["written"])

    def remember(self, step: int, base: Base) -> None:
        self._inherited = (step, base)

    def wait_until_ready(self) -> None:
        """Start the writer process if it is not running. Block until the process has opened its stores."""
        if self._is_ready:
            return
        if self._closed.is_set():
            raise self._died("this writer was closed")
        try:
            if self._channel is None:
                self._start()
            assert self._channel is not None
            message = ipc.receive(self._channel)
        except OSError as error:
            raise self._died(str(error)) from None
        if message is None or message.head["kind"] != "ready":
            raise self._died("it ended" if message is None else message.head["why"])
        self._is_ready = True

    def close(self) -> None:
        self._closed.set()
        self._end()

    def _end(self) -> None:
        self._is_ready = False
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(OSError):
                # If this end of the socket closes, the process ends, and a thread that waits here wakes up.
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        self._starts += 1
        ours, theirs = socket.socketpair()
        # The process inherits this mask until it sets its own mask, because a notice may come during the start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "segue.checkpoints.saving.writer_process",
                        str(theirs.fileno()),
                        str(os.getpid()),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=self._folder,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._channel = ours
        self._known.clear()
        ipc.send(ours, {"kind": "stores", "stores": [_address(spec) for spec in self._stores]})

    def _ask(self, staged: Staged, skeletons: Mapping[str, bytes], save: Save) -> dict[str, Any] | None:
        assert self._channel is not None
        staging_buffer, layout, number = staged.staging_buffer, staged.layout, staged.staging_buffer.number
        known_staging_buffer, known_layout = self._known.get(number, (None, None))
        if known_staging_buffer is not staging_buffer:
            head = {"kind": "staging_buffer", "staging_buffer": number, "size_bytes": staging_buffer.size_bytes}
            ipc.send(self._channel, head, descriptors=[staging_buffer.descriptor])
        if known_layout is not layout:
            rows = [(name, spec.dtype, spec.shape, at, size) for name, (spec, at, size) in layout.placed.items()]
            head = {
                "kind": "layout",
                "staging_buffer": number,
                "size_bytes": layout.size_bytes,
                "slices": layout.slices,
            }
            ipc.send(self._channel, head, json.dumps(rows).encode())
        self._known[number] = (staging_buffer, layout)
        if self._inherited is not None:
            step, base = self._inherited
            ipc.send(self._channel, {"kind": "base", "step": step}, json.dumps(base.to_json()).encode())
            self._inherited = None
        texts = {name: skeleton.decode() for name, skeleton in skeletons.items()}
        head = {"kind": "write", "staging_buffer": number, "save": asdict(save), "rank": self._rank}
        head |= {
            "try_number": self._starts - self._first_try[1] + save.first_try,
            "partition_hash": staged.partition_hash,
        }
        ipc.send(self._channel, head, json.dumps(texts).encode())
        answer = ipc.receive(self._channel)
        return None if answer is None else answer.head

    def _died(self, why: str) -> WriterDiedError:
        self._end()
        code = self._process.returncode if self._process is not None else None
        return WriterDiedError(exit_code=code, why=why)


def _skeletons(staged: Staged) -> dict[str, bytes]:
    found = as_json(staged.skeletons)
    refuse_too_large_index(found, staged.layout)
    return found


def _address(spec: StoreSpec) -> dict[str, str | None]:
    """Return the arguments of `open_url`, without the signing key, because the writer process signs nothing."""
    return {"url": spec.url, "endpoint_url": spec.endpoint_url, "region": spec.region}


def wait_for_writer(shards: ShardWriter) -> None:
    """Block until the writer can write. If the writer process dies during the wait, start it again a few times.

    Raises:
        WriterDiedError: the writer process died each time.
    """
    for tries_left in reversed(range(_STARTS)):
        try:
            shards.wait_until_ready()
        except WriterDiedError as error:
            if not tries_left:
                raise
            log.warning("writer process restarted reason=%s", error)
        else:
            return
