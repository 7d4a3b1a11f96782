"""A checkpoint that needs more memory than its container has is refused before a byte of it is read."""

from __future__ import annotations

import pytest

from segue.checkpoints.loading.select import newest_valid
from segue.errors import MachineTooSmallError
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.testing.faulty_store import FaultyStore


@pytest.fixture
def trained(fork_server, make_spec, open_log):
    spec = make_spec(steps=20)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    return runlog


def test_nothing_is_read_and_nothing_is_quarantined(trained):
    reads = []

    def fails(operation, key):
        if "/log" not in key and operation in ("get", "get_range", "read_into"):
            reads.append(key)
        return False

    watched = RunLog(FaultyStore(trained.store, fails=fails), trained.run_id)
    before = len(trained.reload().slots)
    size_bytes = read_history(trained).newest.manifest.size_bytes
    reads.clear()
    with pytest.raises(MachineTooSmallError, match="memory") as caught:
        newest_valid(watched, epoch=read_history(trained).attempts[-1].claim.epoch, memory_bytes=size_bytes - 1)
    assert (caught.value.needed_bytes, caught.value.memory_bytes) == (size_bytes, size_bytes - 1)
    shards = {shard.key for shard in read_history(trained).newest.manifest.shards}
    assert not [key for key in reads if key.partition("/")[2] in shards]
    assert len(trained.reload().slots) == before
    assert read_history(trained.reload()).newest.quarantined is None


def test_with_just_enough_it_is_read(trained):
    size_bytes = read_history(trained).newest.manifest.size_bytes
    epoch = read_history(trained).attempts[-1].claim.epoch
    assert newest_valid(trained, epoch=epoch, memory_bytes=size_bytes) is not None
    assert newest_valid(trained, epoch=epoch) is not None
