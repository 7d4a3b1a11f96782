"""A writer process that cannot continue reports why before it ends, and prints nothing once its trainer is gone."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from segue.checkpoints.saving import ipc
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import ProcessWriter
from segue.checkpoints.saving.written import Save
from segue.errors import WriterDiedError
from segue.spec import StoreSpec
from segue.stores import LocalStore
from tests.checkpoints.test_writer_process import PATIENCE_SECONDS, assert_stored, state, write


@pytest.fixture
def spec(tmp_path):
    return StoreSpec(url=str(tmp_path / "store"))


def test_whatever_it_cannot_go_on_from_is_said_and_the_next_write_works(spec):
    with closing(ProcessWriter([spec])) as writer:
        with pytest.raises(WriterDiedError, match="ValueError"):
            write(writer, state(), "no number")
        assert_stored(LocalStore(Path(spec.url)).create(), write(writer, state(), 2), 2, state())


def test_a_key_that_it_refuses_is_said_in_the_errors_own_words(spec):
    with closing(ProcessWriter([spec])) as writer, closing(StagingArea()) as area:
        staged = area.take(state())
        with pytest.raises(WriterDiedError, match="not a plain relative path"):
            writer.write(staged, Save("../elsewhere", "seg000-a1-e1", 1))


def test_too_little_memory_for_the_staging_buffer_is_said_and_a_write_with_more_works(spec):
    tree = state(2**24)
    with closing(ProcessWriter([spec])) as writer:
        writer.wait_until_ready()
        used_bytes = int(Path(f"/proc/{writer.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.prlimit(writer.pid, resource.RLIMIT_AS, (used_bytes + 2**24, hard))
        with pytest.raises(WriterDiedError, match="Cannot allocate memory"):
            write(writer, tree, 1)
        assert_stored(LocalStore(Path(spec.url)).create(), write(writer, tree, 2), 2, tree)


def test_an_owner_that_is_gone_before_it_is_ready_leaves_no_traceback(spec):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "segue.checkpoints.saving.writer_process", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        # What it sends is refused, and what was sent to it still arrives: so it is for a moment when its owner dies.
        ours.shutdown(socket.SHUT_RD)
        ipc.send(ours, {"kind": "stores", "stores": [spec.model_dump(mode="json")]})
        _, output = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (0, b"")
