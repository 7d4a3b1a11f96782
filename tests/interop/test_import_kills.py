"""Whatever happens in the middle of an import, the run is one without a checkpoint or one with the weights."""

from __future__ import annotations

import multiprocessing as mp
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.crash.killing_store import die
from segue.checkpoints.saving.staging import StagingArea
from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import FencedError, RunBegunError
from segue.interop.first_checkpoint import commit_first
from segue.interop.import_weights import import_weights
from segue.interop.initial_state import first_state
from segue.records import CheckpointRef, StopReason
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.usefixtures("one_thread")


def store_of(spec: RunSpec) -> Path:
    return Path(spec.store.url)


def import_into(spec: RunSpec, weights: Path, store: FaultyStore) -> CheckpointRef:
    """An import as the command makes it, with this store in the place of the run's."""
    made = first_state(spec, weights, step=0, partial=False, progress=lambda doing: None)
    open_run(spec, clock=SystemClock())
    with closing(StagingArea()) as staging:
        return commit_first(RunLog(store, spec.run_id), made.first, staging.take(made.first.trees), clock=SystemClock())


def writes_of(spec: RunSpec, then: Callable[[int, str], None]) -> FaultyStore:
    """The run's store; `then` is told number and key of each write before it is made, but for heartbeats."""
    count = iter(range(1, 1000))

    def look(operation: str, key: str) -> bool:
        if operation in {"put", "put_if_absent"} and not key.endswith("heartbeat.json"):
            then(next(count), key)
        return False

    return FaultyStore(open_store(spec.store), fails=look)


def test_of_two_imports_at_once_one_is_committed(make_spec, weights):
    spec = make_spec()

    def observer(number: int, key: str) -> None:
        if key.endswith(".safetensors"):
            import_weights(spec, weights)

    with pytest.raises(FencedError):
        import_into(spec, weights, writes_of(spec, observer))
    history = read_history(RunLog(open_store(spec.store), spec.run_id))
    assert [keys.epoch_of(c.ref.attempt_id, log_id=c.ref.attempt_id[-8:]) for c in history.checkpoints] == [2]
    assert history.open_plan is None


@pytest.mark.matrix
def test_a_run_that_is_started_during_an_import_waits_for_it_and_goes_on_from_it(make_spec, open_log, weights):
    spec = make_spec(steps=12, liveness={"heartbeat_seconds": 0.05, "heartbeat_timeout_seconds": 2})
    run = threading.Thread(target=lambda: run_here(spec, open_log(spec), on_line=lambda line: None))

    def observer(number: int, key: str) -> None:
        if key.endswith(".safetensors"):
            run.start()
            run.join(
                9
            )  # Its trainer has found the run claimed by then, and a heartbeat timeout without a heartbeat has run out.

    import_into(spec, weights, writes_of(spec, observer))
    run.join(60)
    history = read_history(RunLog(open_store(spec.store), spec.run_id))
    assert [(word.segment, word.attempt, word.stop_reason) for word in history.last_reports()] == [
        (0, 1, StopReason.BOUND),
        (1, 1, StopReason.FINISHED),
    ]
    assert history.resumes[0].parent == history.checkpoints[0].ref


def killed_import(spec: str, weights: Path, at: int) -> None:
    made = RunSpec.model_validate_json(spec)

    def kill(number: int, key: str) -> None:
        if number == at:
            die()

    import_into(made, weights, writes_of(made, kill))


def kinds_of(spec: RunSpec) -> list[str]:
    return [slot.entry.kind for slot in RunLog(open_store(spec.store), spec.run_id).reload().slots]


@pytest.fixture(scope="module")
def forkserver(fork_server):
    return mp.get_context("forkserver")


@pytest.mark.parametrize(
    ("at", "records"),
    [
        (1, 1),
        *(pytest.param(at, records, marks=pytest.mark.matrix) for at, records in ((2, 2), (3, 3), (5, 3), (6, 4))),
        (4, 3),
    ],
)
def test_a_kill_before_any_write_leaves_a_run_that_can_be_imported_again_or_started(
    fork_server, forkserver, make_spec, open_log, weights, tmp_path, at, records
):
    spec = make_spec(steps=12)
    process = forkserver.Process(target=killed_import, args=(spec.model_dump_json(), weights, at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    kinds = kinds_of(spec)
    assert kinds == ["open", "decision", "claim", "commit", "report"][:records]
    started = spec.model_copy(update={"store": spec.store.model_copy(update={"url": str(tmp_path / "copy")})})
    shutil.copytree(store_of(spec), store_of(started))

    if "commit" in kinds:
        with pytest.raises(RunBegunError):
            import_weights(spec, weights)
    else:
        import_weights(spec, weights)
    history = read_history(open_log(spec))
    assert [checkpoint.manifest.step for checkpoint in history.checkpoints] == [0]
    assert history.newest.manifest.imported_from.name == "weights.pt"

    log = open_log(started)
    fork_server.run_to_the_end(log, started)
    history = read_history(log)
    assert history.committed_step == 12
    numbers = [(entry.plan.segment, entry.plan.attempt) for entry in history.decisions if entry.plan]
    assert len(set(numbers)) == len(numbers)
    has_imported = history.checkpoints[0].manifest.imported_from is not None
    assert has_imported is ("commit" in kinds)
    # Whatever became of the import, it was not a preemption of spot.
    assert [r.got_capacity for r in history.last_reports()] == [not history.is_import(*n) for n in numbers]
