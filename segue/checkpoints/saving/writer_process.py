"""Hashes, writes and uploads staged states in the writer process, which has a low priority and does not import torch.

A thread in the trainer would make training 3 to 24 times slower during a write, because both need the interpreter lock.
The writer process ends as soon as the trainer ends for any reason. A save that is unfinished when the writer process
ends stays uncommitted.
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
from segue.checkpoints.format.index import Base
from segue.checkpoints.format.layout import Placed, ShardLayout, TensorSlice, TensorSpec
from segue.checkpoints.saving import ipc
from segue.checkpoints.saving.write import Bases, write_checkpoint
from segue.checkpoints.saving.written import Save
from segue.errors import SegueError
from segue.process import Parent, end_with
from segue.stores import Store, StoreWriteError, open_url

log = logging.getLogger("segue.writer")

NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Signals that this process ignores. The trainer acts on these signals."""

_NICENESS = 10
_POLL_SECONDS = 0.5
_TURN_SECONDS = 0.0005
"""Seconds after which a thread yields to another thread.

Python's default interval of 5 ms would delay each file operation.
"""


class _Work:
    """The staging buffers and layouts of the trainer, and the stores."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores
        self._staging_buffers: dict[int, mmap.mmap] = {}
        self._layouts: dict[int, ShardLayout] = {}
        self._bases = Bases()

    def do(self, message: ipc.Message) -> dict[str, Any] | None:
        """Process one message. Return the answer, or None if the message needs no answer."""
        head = message.head
        number = head.get("staging_buffer", 0)
        match head["kind"]:
            case "base":
                self._bases.keep(head["step"], Base.from_json(json.loads(message.body)))
            case "staging_buffer":
                (descriptor,) = message.descriptors
                self._staging_buffers[number] = mmap.mmap(descriptor, head["size_bytes"])
                os.close(descriptor)
            case "layout":
                rows = json.loads(message.body)
                placed = {name: Placed(TensorSpec(dtype, tuple(shape)), *where) for name, dtype, shape, *where in rows}
                slices = {name: _slice(*place) for name, place in head["slices"].items()}
                self._layouts[number] = ShardLayout(b"", placed, head["size_bytes"], slices)
            case "write":
                return self._write(number, head, message.body)
        return None

    def _write(self, number: int, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        shard_layout = self._layouts[number]
        skeletons = {name: text.encode() for name, text in json.loads(body).items()}
        save = Save(**head["save"])
        try:
            written, base = write_checkpoint(
                self._stores,
                save,
                rank=head["rank"],
                try_number=head["try_number"],
                partition_hash=head["partition_hash"],
                shard_file=memoryview(self._staging_buffers[number])[: shard_layout.size_bytes],
                shard_layout=shard_layout,
                skeletons=skeletons,
                base=self._bases.get(save.base_step),
            )
        except StoreWriteError as error:
            return {"kind": "refused", "key": error.key, "why": error.why}
        self._bases.keep(save.step, base)
        return {"kind": "written", "written": written.to_json()}


def _slice(tensor: str, shape: list[int], offsets: list[int]) -> TensorSlice:
    return TensorSlice(tensor, tuple(shape), tuple(offsets))


def main() -> None:
    """Serve the trainer. Command-line arguments: the descriptor of the socket, and the process id of the trainer."""
    # The trainer handles the notice, and ends this process after the last checkpoint is durable.
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)  # Signals that arrived during the start are dropped.
    os.nice(_NICENESS)
    sys.setswitchinterval(_TURN_SECONDS)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s writer | %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    inbox: queue.SimpleQueue[ipc.Message] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(channel, inbox), name="segue-wire", daemon=True)
    listener.start()
    end_with(Parent(int(sys.argv[2])), poll_seconds=_POLL_SECONDS)
    try:
        _serve(channel, inbox)
    except SegueError as error:
        _send(channel, {"kind": "unfit", "why": str(error)})
    except Exception as error:
        log.exception("the writer process cannot continue")
        _send(channel, {"kind": "broken", "why": repr(error)})
    # The trainer may still be sending; after that, it reads the reason and closes the socket.
    listener.join()


def _serve(channel: socket.socket, inbox: queue.SimpleQueue[ipc.Message]) -> None:
    work = _Work([open_url(**spec) for spec in inbox.get().head["stores"]])
    _send(channel, {"kind": "ready"})
    while True:
        with paused_collector():
            answer = work.do(inbox.get())
            if answer is not None:
                _send(channel, answer)


def _send(channel: socket.socket, head: dict[str, Any]) -> None:
    try:
        ipc.send(channel, head)
    except OSError:
        os._exit(0)  # The trainer has ended, and no other process waits for the answer.


def _listen(channel: socket.socket, inbox: queue.SimpleQueue[ipc.Message]) -> None:
    try:
        while (message := ipc.receive(channel)) is not None:
            inbox.put(message)
    finally:
        # No process can commit the bytes that are being written. There is no clean-up, so a running upload does not
        # delay the end.
        os._exit(0)


if __name__ == "__main__":
    main()
