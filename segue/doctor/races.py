"""Tests put-if-absent: processes and threads put different bytes to the same new keys at the same time.

`python -m segue.doctor.races` runs one of these processes. The process reads the store's spec from the first line of
standard input, and a key from each further line. The process answers each line with a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from segue.doctor.check import Result, fail, ok
from segue.doctor.scratch import Scratch
from segue.errors import MissingObjectError
from segue.spec import StoreSpec
from segue.stores import Store, StoreReadError, StoreWriteError, open_store

_PROCESSES, _THREADS, ROUNDS = 2, 4, 4
_FIX = "use AWS S3, a store with conditional puts, or a folder on one file system with hard links."


@dataclass(frozen=True)
class Round:
    """The outcome of one race of several writers for one new key."""

    winners: tuple[str, ...]
    """The bytes of each writer that, according to the store's answer, created the object."""
    failed: int
    """Number of writers whose put failed with an error.

    In spite of the error, the store may have written the object.
    """
    stored: str | None
    """The bytes of the object after the race. If there is no object, the value is None."""
    racers: tuple[str, ...] = ()
    """The bytes that each writer tried to store."""


def judge(rounds: Sequence[Round], *, racers: int) -> Result:
    """Judge whether each key had exactly one winner, and whether the store still has the winner's bytes.

    The function is pure. If the store's answer to a put was lost, the retry may report another winner, although the
    store has the bytes of this put.
    """
    several = next((race for race in rounds if len(race.winners) > 1), None)
    if several is not None:
        count = len(several.winners)
        return fail(
            f"{count} of {racers} writers of one key were all told that they created it, so two attempts could claim "
            "the run",
            fix=_FIX,
        )
    replaced = next((race for race in rounds if race.winners and race.stored != race.winners[0]), None)
    if replaced is not None:
        return fail("the object of the first writer was overwritten by another writer", fix=_FIX)
    if any(race.failed == racers for race in rounds):
        return fail("every writer of a key failed", fix="see the other checks of the store.")
    nobody = next((race for race in rounds if not race.winners and race.stored not in race.racers), None)
    if nobody is not None:
        return fail("no writer learned that it had created the new key, so none could claim the run", fix=_FIX)
    return ok(f"{len(rounds)} races of {racers} writers: one winner each")


def race(store: Store, spec: StoreSpec, scratch: Scratch) -> Result:
    """Let several processes put different bytes to new keys at the same time, and judge the outcomes."""
    keys = [scratch.new_key() for _ in range(ROUNDS)]
    command = [sys.executable, "-m", "segue.doctor.races"]
    try:
        with ExitStack() as stack:
            processes = [
                stack.enter_context(scratch.child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                for _ in range(_PROCESSES)
            ]
            for process in processes:
                _say(process, spec.model_dump_json())
            for process in processes:
                _heard(process)  # The process is ready: all start together.
            rounds = [_round(store, processes, key) for key in keys]
    finally:
        # If the right to delete is missing, the check of that right reports it.
        scratch.forget(store, *keys)
    return judge(rounds, racers=_PROCESSES * _THREADS)


def _round(store: Store, processes: Sequence[subprocess.Popen[str]], key: str) -> Round:
    for process in processes:
        _say(process, key)
    answers = [answer for process in processes for answer in _heard(process)]
    try:
        stored = store.get(key).decode()
    except MissingObjectError:
        stored = None
    return Round(
        winners=tuple(name for name, is_created in answers if is_created),
        failed=sum(is_created is None for _, is_created in answers),
        stored=stored,
        racers=tuple(name for name, _ in answers),
    )


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _heard(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def _put(store: Store, key: str, start: threading.Barrier) -> tuple[str, bool | None]:
    own = uuid.uuid4().hex
    start.wait()
    try:
        return own, store.put_if_absent(key, own.encode())
    except (StoreWriteError, StoreReadError):
        return own, None


def main() -> None:
    """For each key on standard input, put bytes from several threads at once, until the input ends."""
    store = open_store(StoreSpec.model_validate_json(sys.stdin.readline()))
    start = threading.Barrier(_THREADS)
    with ThreadPoolExecutor(_THREADS) as threads:
        sys.stdout.write("true\n")
        sys.stdout.flush()
        for line in sys.stdin:
            puts = [threads.submit(_put, store, line.strip(), start) for _ in range(_THREADS)]
            sys.stdout.write(json.dumps([put.result() for put in puts]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
