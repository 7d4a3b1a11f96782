"""The writer process: hashes, writes and uploads what the trainer has staged, at low priority and without torch.

A thread would slow training down by three to twenty-four times while it writes, because it takes the interpreter
from it. This process ends as soon as the trainer does, however that ends: what it has not finished by then was never
committed.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.layout import Placed, ShardLayout, TensorSlice, TensorSpec
from segue.checkpoints.saving import ipc
from segue.checkpoints.saving.incremental import Bases, base_from_json
from segue.checkpoints.saving.write import write_checkpoint
from segue.clock import SystemClock
from segue.errors import SegueError
from segue.stores import Store, StoreWriteError, open_url

log = logging.getLogger("segue.writer")

NOTICES = (signal.SIGTERM, signal.SIGINT)
"""Signals that are the trainer's to act on."""

_NICENESS = 10
_LOOK_SECONDS = 0.5
_TURN_SECONDS = 0.0005
"""How long one thread goes on when another wants to. Python's 5 ms would be the price of each operation on a file."""


class _Work:
    """The staging buffers and layouts that are known, and the stores to write to."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores
        self._staging_buffers: dict[int, mmap.mmap] = {}
        self._layouts: dict[int, ShardLayout] = {}
        self._bases = Bases()

    def do(self, message: ipc.Message) -> dict[str, Any] | None:
        """Act on one message; returns the answer, None where none is due."""
        head = message.head
        number = head.get("staging_buffer", 0)
        match head["kind"]:
            case "base":
                self._bases.keep(head["step"], base_from_json(json.loads(message.body)))
            case "staging_buffer":
                (descriptor,) = message.descriptors
                self._staging_buffers[number] = mmap.mmap(descriptor, head["size_bytes"])
                os.close(descriptor)
            case "layout":
                rows = json.loads(message.body)
                placed = {name: Placed(TensorSpec(dtype, tuple(shape)), *where) for name, dtype, shape, *where in rows}
                pieces = {name: _piece(*piece) for name, piece in head["pieces"].items()}
                self._layouts[number] = ShardLayout(b"", placed, head["image_bytes"], pieces)
            case "write":
                return self._write(number, head, message.body)
        return None

    def _write(self, number: int, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        shard_layout = self._layouts[number]
        skeletons = {name: text.encode() for name, text in json.loads(body).items()}
        try:
            written, base = write_checkpoint(
                self._stores,
                run_id=head["run_id"],
                attempt_id=head["attempt_id"],
                step=head["step"],
                rank=head["rank"],
                image=memoryview(self._staging_buffers[number])[: shard_layout.size_bytes],
                shard_layout=shard_layout,
                skeletons=skeletons,
                base=self._bases.get(head["base_step"]),
            )
        except StoreWriteError as error:
            return {"kind": "refused", "key": error.key, "why": error.why}
        self._bases.keep(head["step"], base)
        return {"kind": "written", "written": written.to_json()}


def _piece(tensor: str, shape: list[int], offsets: list[int]) -> TensorSlice:
    return TensorSlice(tensor, tuple(shape), tuple(offsets))


def main() -> None:
    """Serve the socket whose descriptor is the first argument until it closes, or its owner, the second, is gone."""
    # The trainer takes the notice, and ends this process when the last checkpoint is durable.
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)  # Those that came while it started are forgotten.
    os.nice(_NICENESS)
    sys.setswitchinterval(_TURN_SECONDS)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s writer | %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    inbox: queue.SimpleQueue[ipc.Message] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(channel, inbox), name="segue-wire", daemon=True)
    listener.start()
    threading.Thread(target=_outlive_nobody, args=(int(sys.argv[2]),), name="segue-parent", daemon=True).start()
    try:
        _serve(channel, inbox)
    except SegueError as error:
        _say(channel, {"kind": "unfit", "why": str(error)})
    except Exception as error:
        log.exception("cannot go on")
        _say(channel, {"kind": "broken", "why": repr(error)})
    # The owner may be in the middle of sending: it reads why once it is done, and closes the socket.
    listener.join()


def _serve(channel: socket.socket, inbox: queue.SimpleQueue[ipc.Message]) -> None:
    work = _Work([open_url(**spec) for spec in inbox.get().head["stores"]])
    _say(channel, {"kind": "ready"})
    while True:
        with paused_collector():
            answer = work.do(inbox.get())
            if answer is not None:
                _say(channel, answer)


def _say(channel: socket.socket, head: dict[str, Any]) -> None:
    try:
        ipc.send(channel, head)
    except OSError:
        os._exit(0)  # The owner is gone, and nobody else wants to know.


def _outlive_nobody(parent_pid: int) -> None:
    # A child of the trainer that was forked, not started, holds its end of the socket open: that end says nothing then.
    while os.getppid() == parent_pid:
        SystemClock().sleep(_LOOK_SECONDS)
    os._exit(0)


def _listen(channel: socket.socket, inbox: queue.SimpleQueue[ipc.Message]) -> None:
    try:
        while (message := ipc.receive(channel)) is not None:
            inbox.put(message)
    finally:
        # Nobody is left to commit what is being written. No clean-up: an upload in flight must not hold it back.
        os._exit(0)


if __name__ == "__main__":
    main()
