"""The store that the ranks share: calls do not wait for a machine that has gone without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from torch.distributed import DistStoreError

from segue.clock import SystemClock
from segue.errors import RankLostError
from segue.trainer.ranks.exchange import Exchange, SilentStoreError
from segue.trainer.ranks.rank_failures import _SILENT_LOOKS, RankFailures
from tests.trainer.ranks.test_unanswered import DictNotes

HOST = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


@pytest.fixture
def host():
    """A process that hosts the store, and its port."""
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as process:
        yield process, int(process.stdout.readline())
        process.kill()


@pytest.fixture
def exchange(host, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(host[1]))
    return Exchange(wait_seconds=60)


def test_what_one_puts_another_gets(exchange, host):
    assert exchange.get("key") is None
    exchange.put("key", "text")
    assert Exchange(wait_seconds=60).get("key") == "text"
    assert [exchange.count("turn") for _ in range(3)] == [1, 2, 3]


@pytest.mark.matrix
def test_a_call_ends_where_the_machine_of_the_store_says_nothing_and_goes_on_when_it_does(exchange, host):
    process, _ = host
    exchange.put("key", "text")
    exchange._answer_seconds = 2.0
    os.kill(process.pid, signal.SIGSTOP)
    # Until its last thread has stopped, the store answers.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    with pytest.raises(SilentStoreError, match="not answered for 2 s"):
        exchange.get("key")
    began = time.monotonic()
    for call in (lambda: exchange.get("key"), lambda: exchange.put("key", "other"), lambda: exchange.count("turn")):
        with pytest.raises(SilentStoreError):
            call()
    assert time.monotonic() - began < 2, "the first call is still not answered, so the next ones do not wait"
    os.kill(process.pid, signal.SIGCONT)
    give_up_at = time.monotonic() + 60
    while True:
        try:
            assert exchange.get("key") == "text"
            break
        except SilentStoreError:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


@pytest.mark.matrix
def test_a_store_that_is_gone_raises_at_once(exchange, host):
    process, _ = host
    process.kill()
    process.wait()
    with pytest.raises(RuntimeError):
        exchange.get("key")


@pytest.fixture
def failures():
    """What rank 1 knows when the store is gone."""
    notes = DictNotes()
    own = RankFailures(notes, watched=notes, rank=1, count=2, wait_seconds=1.0, clock=SystemClock())

    def silent(*_):
        raise SilentStoreError(5.0)

    notes.put = notes.get = notes.count = silent
    return own


def test_without_the_store_a_rank_keeps_its_own_failure(failures):
    with pytest.raises(ArithmeticError, match="by the recipe"), failures.shared():
        raise ArithmeticError("by the recipe")


def test_without_the_store_a_broken_collective_is_a_lost_rank_and_no_failure_of_the_recipe(failures):
    with pytest.raises(RankLostError, match="the key-value store of the ranks"), failures.shared():
        raise DistStoreError("connection reset")


def test_a_silence_of_the_store_ends_a_rank_as_lost_and_hangs_no_other_one():
    notes = DictNotes()
    own, other = (
        RankFailures(notes, watched=notes, rank=rank, count=2, wait_seconds=1.0, clock=SystemClock()) for rank in (1, 0)
    )
    with pytest.raises(RankLostError, match="the key-value store of the ranks"), own.shared():
        raise OSError("a save that failed") from SilentStoreError(60.0)
    assert own.reporter == 0
    assert isinstance(other.ended_elsewhere(), RankLostError), "the machine's fault, not the recipe's"


def test_two_minutes_without_the_store_end_a_rank_that_waits(failures):
    seen = [failures.ended_elsewhere() for _ in range(_SILENT_LOOKS)]
    assert seen[:-1] == [None] * (_SILENT_LOOKS - 1)
    assert isinstance(seen[-1], RankLostError)
    assert failures.take_over() is False, "rank 0 reports, if it is there"
