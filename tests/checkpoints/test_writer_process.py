"""The writer process: what it writes is what was staged, and no end of its own or of its owner's harms more."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import resource
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import ProcessWriter
from segue.checkpoints.saving.written import Save
from segue.errors import StoreUnreachableError, WriterDiedError
from segue.records import Environment, Manifest
from segue.spec import StoreSpec
from segue.stores import LocalStore, StoreWriteError

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def writer(tmp_path):
    made = ProcessWriter([StoreSpec(url=LocalStore(tmp_path / "store").create().url)])
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


def state(elements=1000, fill=1.0):
    return {"model": {"w": torch.full((elements,), fill), "b": torch.tensor(True)}, "progress": {"step": 1}}


def write(writer, tree, step):
    with closing(StagingArea()) as area:
        return writer.write(area.take(tree), Save("run", "seg000-a1-e1", step))


def read(store, written, step):
    facts = {"shards": written.shards, "tensor_count": written.tensor_count, "components": written.components}
    manifest = Manifest(step=step, samples_seen=step, epoch=0, environment=HERE, **facts)
    return read_checkpoint(store, run_id="run", manifest=manifest)


def assert_stored(store, written, step, tree):
    found = read(store, written, step)
    assert found.skeletons["progress"] == tree["progress"]
    for name, tensor in tree["model"].items():
        assert torch.equal(found.tensors[f"model.{name}"], tensor), name


def until(holds, what):
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.01)


def is_running(pid):
    """Whether there is such a process; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_in(thread, function):
    """Whether that function is on the thread's stack."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def in_background(call):
    """Run it in a thread; the list holds what it returned or raised once the thread has ended."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_what_it_writes_reads_back_bit_for_bit_also_after_a_change_of_layout(writer, store):
    area = StagingArea()
    for step, elements in enumerate([1000, 3_000_000, 3_000_000, 5], start=1):
        tree = state(elements, fill=step / 3)
        staged = area.take(tree)
        written = writer.write(staged, Save("run", "seg000-a1-e1", step))
        area.release(staged)
        assert_stored(store, written, step, tree)
    area.close()


def test_two_staging_buffers_are_not_mixed_up(writer, store):
    area, trees = StagingArea(staging_buffers=2), [state(700_000, fill=1.0), state(700_000, fill=2.0)]
    staged = [area.take(tree) for tree in trees]
    for step in (1, 0):
        written = writer.write(staged[step], Save("run", "seg000-a1-e1", step))
        assert_stored(store, written, step, trees[step])
    area.close()


def test_it_is_niced_and_has_no_torch_loaded(writer):
    writer.wait_until_ready()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, writer.pid) == min(own + 10, 19)
    maps = Path(f"/proc/{writer.pid}/maps").read_text()
    assert ("python" in maps, "libtorch" in maps, "numpy" in maps) == (True, False, False)


def test_a_notice_to_every_process_of_the_machine_does_not_stop_it(writer, store):
    writer.wait_until_ready()
    pid = writer.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(pid, number)
    assert_stored(store, write(writer, state(), 1), 1, state())
    assert writer.pid == pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_while_it_starts_does_not_stop_it_either(writer, number):
    os.kill(writer.pid, number)
    writer.wait_until_ready()
    assert is_running(writer.pid)


def kill_in_the_middle(writer, store, tree, step):
    """SIGKILL the writer while a file is half there; None when it was too fast."""
    thread, outcome = in_background(lambda: write(writer, tree, step))
    folder = store.root / f"run/attempts/seg000-a1-e1/step-{step:09d}"
    while thread.is_alive() and not any(folder.glob(".staged-*")):
        pass
    os.kill(writer.pid, signal.SIGSTOP)
    is_half = not (folder / "rank-0.safetensors").exists()
    os.kill(writer.pid, signal.SIGKILL)
    thread.join()
    return outcome[0] if is_half and isinstance(outcome[0], Exception) else None


def test_a_kill_in_the_middle_of_a_write_is_named_and_the_next_write_works(writer, store):
    tree = state(16_000_000)
    died = None
    for step in range(1, 11):
        died = kill_in_the_middle(writer, store, tree, step)
        if died is not None:
            break
        with suppress(WriterDiedError):
            write(writer, state(), 100 + step)
    assert isinstance(died, WriterDiedError)
    assert "exit code -9" in str(died)
    assert not list(store.root.rglob(f"step-{step:09d}/rank-0.json"))
    assert_stored(store, write(writer, tree, 50), 50, tree)


def test_a_save_that_is_repeated_after_a_kill_leaves_what_the_first_try_stored_as_it_was(writer, store):
    tree = state(300_000) | {"frozen": {"w": torch.ones(3_000_000)}}
    with closing(StagingArea()) as area:

        def save(step, base_step):
            staged = area.take(tree)
            try:
                return writer.write(staged, Save("run", "seg000-a1-e1", step, base_step=base_step))
            finally:
                area.release(staged)

        save(1, None)
        tree["model"]["w"] += 1
        thin = save(2, 1)
        # Killed before its answer was used: the new process knows no base, so it stores every tensor.
        os.kill(writer.pid, signal.SIGKILL)
        with pytest.raises(WriterDiedError):
            save(2, 1)
        whole = save(2, 1)
    assert whole.new_bytes > 2 * thin.new_bytes
    for written in (thin, whole):
        assert_stored(store, written, 2, tree)


def test_a_kill_while_nothing_is_written_costs_one_try(writer, store):
    assert_stored(store, write(writer, state(), 1), 1, state())
    first = writer.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WriterDiedError):
        write(writer, state(), 2)
    assert not Path(f"/proc/{first}").exists()  # Not even as a zombie.
    assert_stored(store, write(writer, state(), 2), 2, state())


@pytest.mark.matrix
def test_deaths_leave_no_descriptor_behind(writer):
    write(writer, state(), 1)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for step in range(3):
        os.kill(writer.pid, signal.SIGKILL)
        with pytest.raises(WriterDiedError):
            write(writer, state(), step)
        write(writer, state(), step)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_writer_that_hangs_is_ended_and_its_caller_gets_an_error(writer, monkeypatch):
    monkeypatch.setattr("segue.checkpoints.saving.writer_client._END_SECONDS", 0.2)
    writer.wait_until_ready()
    pid = writer.pid
    os.kill(pid, signal.SIGSTOP)
    thread, outcome = in_background(lambda: write(writer, state(), 1))
    until(lambda: is_in(thread, "receive"), "it never came to wait for an answer")
    writer.close()
    thread.join()
    writer.close()
    assert not Path(f"/proc/{pid}").exists()
    assert isinstance(outcome[0], WriterDiedError)


def test_once_closed_it_does_not_start_again(writer):
    """A thread that comes late to its save would leave a process behind."""
    writer.wait_until_ready()
    pid = writer.pid
    writer.close()
    with pytest.raises(WriterDiedError):
        write(writer, state(), 1)
    assert (writer.pid, is_running(pid)) == (pid, False)


def test_a_full_disk_is_named_and_the_save_works_once_there_is_space(writer, store):
    writer.wait_until_ready()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (2 << 20, hard))
    tree = state(3_000_000)
    for _ in range(2):
        with pytest.raises(StoreWriteError, match="File too large") as raised:
            write(writer, tree, 1)
        assert raised.value.key.endswith("step-000000001/rank-0.safetensors")
    assert not list(store.root.rglob(".staged-*"))
    resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert_stored(store, write(writer, tree, 1), 1, tree)


def test_a_store_that_cannot_be_written_is_named():
    writer = ProcessWriter([StoreSpec(url="/proc/nowhere")])
    try:
        with pytest.raises(StoreWriteError, match="/proc/nowhere"):
            write(writer, state(), 1)
    finally:
        writer.close()


def test_a_store_that_cannot_even_be_opened_is_named(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no key"))
    writer = ProcessWriter([StoreSpec(url="gs://bucket/runs")])
    try:
        with pytest.raises((WriterDiedError, StoreUnreachableError), match="gs://"):
            writer.wait_until_ready()
    finally:
        writer.close()


def test_a_program_that_changes_its_folder_does_not_move_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    LocalStore(tmp_path / "store").create()
    writer = ProcessWriter([StoreSpec(url="store")])
    try:
        write(writer, state(), 1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        os.kill(writer.pid, signal.SIGKILL)
        with pytest.raises(WriterDiedError):
            write(writer, state(), 2)
        assert_stored(LocalStore(tmp_path / "store").create(), write(writer, state(), 2), 2, state())
    finally:
        writer.close()


def own_a_writer(url, end, children, is_starting):
    """A trainer that has its writer write again and again, and maybe a data worker next to it."""
    writer = ProcessWriter([StoreSpec(url=url)])
    if not is_starting:
        writer.wait_until_ready()
    worker = os.fork() if children else 0
    if children and worker == 0:
        signal.pause()
        os._exit(0)
    end.send((writer.pid, worker))
    for step in range(1_000_000):
        write(writer, state(2_000_000), step)


ENDS = {"alone": (0, False), "with a forked data worker": (1, False), "with one, while it starts": (1, True)}


@pytest.mark.parametrize(("children", "is_starting"), ENDS.values(), ids=ENDS)
def test_it_ends_when_its_owner_is_killed(fork_server, tmp_path, children, is_starting):
    context = mp.get_context("forkserver")
    here, there = context.Pipe()
    owner = context.Process(target=own_a_writer, args=(str(tmp_path), there, children, is_starting), daemon=True)
    owner.start()
    writer_pid, worker_pid = here.recv()
    try:
        owner.kill()
        owner.join()
        until(lambda: not is_running(writer_pid), "the writer outlived its owner")
    finally:
        for pid in filter(None, (worker_pid, writer_pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
