"""One attempt of a crash benchmark, with a store that kills the process at a given point."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from pydantic import Field

from benchmarks.crash.killing_store import Data, Half, KillingStore, KillPoint, half_a_file
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.launch.assignment import Assignment, ExitCode
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.notices.signals import SignalNotices
from segue.recipe import Recipe
from segue.records import Record
from segue.runlog.entries import AnyEntry, CommitEntry
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import LocalStore, Store, open_store
from segue.testing.recipes import tiny
from segue.trainer.attempt import run_attempt

RECIPE = "benchmarks.crash.trainer:half_frozen"


class Order(Record):
    """The orders of one trainer."""

    assignment: Assignment
    kill_at: KillPoint | None = Field(None, description="Where it kills itself.")
    writes_inline: bool = Field(
        description="Whether shards too go through the store that kills; else a process writes."
    )
    notes: str = Field(description="A file that gets a line for each append that the store has acknowledged.")
    most_commits: int | None = Field(None, description="After so many it ends as by a notice; None: it goes on.")
    last_step: int | None = Field(None, description="With this one committed it ends as by a notice; None: it goes on.")


class Note(NamedTuple):
    """An append that the store has acknowledged."""

    slot: int
    entry_id: str
    kind: str
    step: int | None
    """Step of a commit."""
    attempt_id: str | None


class Notes:
    """Writes notes that survive a SIGKILL, and ends the attempt after the requested number of commits."""

    def __init__(self, order: Order, board: NoticeBoard) -> None:
        self._order, self._board = order, board
        self._file = os.open(order.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._commits = 0

    def __call__(self, slot: int, entry: AnyEntry) -> None:
        step = entry.manifest.step if isinstance(entry, CommitEntry) else None
        note = Note(slot, entry.entry_id, entry.kind, step, getattr(entry, "attempt_id", None))
        os.write(self._file, json.dumps(note).encode() + b"\n")
        if step is None:
            return
        self._commits += 1
        most, last_step = self._order.most_commits, self._order.last_step
        if (most is not None and self._commits >= most) or (last_step is not None and step >= last_step):
            self._board.leave("bench", grace_seconds=NO_KILL_COMING_SECONDS)


def read_notes(file: Path) -> list[Note]:
    """All notes of a run, in the order in which the store acknowledged the records; empty if there are no notes yet."""
    return [Note(*json.loads(line)) for line in file.read_bytes().splitlines()] if file.exists() else []


def train(order_json: str) -> int:
    """Make the attempt, and return the exit code of the process."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s | %(message)s")
    order = Order.model_validate_json(order_json)
    spec, clock = order.assignment.spec, SystemClock()
    board = NoticeBoard(clock)
    SignalNotices(board, grace_seconds=spec.grace_seconds).listen()
    try:
        inner = open_store(spec.store)
        store = KillingStore(inner, at=order.kill_at, half=_half_of(inner, spec.store), on_append=Notes(order, board))
        report = run_attempt(
            order.assignment,
            runlog=RunLog(store, spec.run_id, clock=clock),
            board=board,
            clock=clock,
            shards=InlineWriter([store]) if order.writes_inline else None,
        )
    except BaseException:
        logging.getLogger("crash").exception("the attempt raised")
        return ExitCode.FAILED
    return ExitCode.of(report.stop_reason)


def half_frozen(config: dict[str, Any]) -> Recipe:
    """The tiny recipe with additional numbers that are never trained, so that a save may refer to the bytes of an
    earlier save.

    Config: frozen (how many numbers), and that of `segue.testing.recipes:tiny`.
    """
    frozen = int(config.get("frozen", 1024))
    recipe = tiny({name: value for name, value in config.items() if name != "frozen"})
    recipe.model.register_buffer("frozen", torch.randn(frozen))
    return recipe


def _half_of(store: Store, spec: StoreSpec) -> Half:
    return half_a_file(store) if isinstance(store, LocalStore) else _half_an_upload(spec)


def _half_an_upload(spec: StoreSpec) -> Half:
    """Leave the result of an interrupted put into a bucket: an incomplete multipart upload."""

    def half(key: str, data: Data) -> bool:
        if not key.endswith(".safetensors"):
            return False  # Only what is large goes in parts.
        import boto3

        where = urlsplit(spec.url)
        client = boto3.client("s3", endpoint_url=spec.endpoint_url, region_name=spec.region or "us-east-1")
        target = {"Bucket": where.netloc, "Key": f"{where.path.strip('/')}/{key}"}
        upload = client.create_multipart_upload(**target)
        part = bytes(data[: len(data) // 2])
        client.upload_part(**target, UploadId=upload["UploadId"], PartNumber=1, Body=part)
        return True

    return half
