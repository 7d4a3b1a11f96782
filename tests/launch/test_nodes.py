"""Two nodes of one attempt, as `srun` starts them.

The second is a container of this machine, so that neither knows the other's processes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress

import psutil
import pytest

from segue.launch import rendezvous as meeting
from segue.launch.assignment import Assignment, ExitCode
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.forked_trainers import next_plan

NODES = 2
CONTAINER = (
    *("unshare", "--pid", "--ipc", "--mount", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"),
)


def can_make_containers():
    return shutil.which("unshare") is not None and not subprocess.run([*CONTAINER, "true"], check=False).returncode


pytestmark = pytest.mark.matrix


def job_id():
    """The id of a job whose ranks would meet at a free port."""
    with closing(socket.socket()) as made:
        made.bind(("127.0.0.1", 0))
        return str(made.getsockname()[1] - meeting.FIRST_PORT)


@pytest.fixture
def start_nodes():
    """Starts a process for each node; all that they started is killed when the test ends."""
    if not can_make_containers():
        pytest.skip("needs root, and unshare of util-linux")
    started = []

    def start(assignment):
        common = {"SLURM_STEP_NUM_NODES": str(NODES), "SLURM_JOB_ID": job_id()}
        nodes = []
        for number in range(NODES):
            env = os.environ | common | {"SLURM_NODEID": str(number)}
            command = [*(CONTAINER if number else ()), sys.executable, "-m", "segue.launch.node"]
            process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE)
            process.stdin.write(assignment.model_dump_json().encode())
            process.stdin.close()
            nodes.append(process)
        started.extend(nodes)
        return nodes

    yield start
    for process in started:
        if process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
        process.wait()


def ranks_of(process):
    """The processes of the ranks that a node has started."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if "segue.trainer.main" in " ".join(child.cmdline()[:4])]


def test_a_notice_on_one_node_ends_both_and_they_go_on_with_the_state_that_they_share(start_nodes, make_spec, open_log):
    """The second attempt lasts longer than a rank that is taken for dead is waited for."""
    config = {"pause_seconds": 0.05, "sharded": True}
    spec = make_spec(recipe="tests.recipes.ranked:even", ranks=NODES, steps=300, config=config)
    runlog = open_log(spec)
    noticed = spec.model_copy(update={"config": config | {"at": [1, 45, "notice"]}})
    for each, codes in ((noticed, [ExitCode.NOTICE, 0]), (spec, [0, 0])):
        nodes = start_nodes(Assignment(spec=each, plan=next_plan(runlog, spec)))
        assert [process.wait(timeout=240) for process in nodes] == codes
    history = read_history(runlog.reload())
    assert [attempt.report.stop_reason for attempt in history.attempts] == [StopReason.NOTICE, StopReason.FINISHED]
    assert history.attempts[0].report.lost_steps == 0
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT
    assert history.committed_step == 300


@pytest.mark.soak
@pytest.mark.parametrize("when", [12, "save"])
def test_a_node_that_falls_silent_is_named_by_the_other_and_the_attempt_ends_in_time(
    start_nodes, make_spec, open_log, when
):
    """Rank 1 hangs in a step, or in the metric of step 10, while its part of that save is written: step 10 is kept."""
    spec = make_spec(
        recipe="tests.recipes.ranked:noisy",
        ranks=NODES,
        config={"at": [1, when, "hang"]},
        checkpoints={"every_steps": 10},
        liveness={"heartbeat_seconds": 0.2, "rank_seconds": 5},
    )
    runlog = open_log(spec)
    nodes = start_nodes(Assignment(spec=spec, plan=next_plan(runlog, spec)))
    assert nodes[0].wait(timeout=240) == ExitCode.HUNG
    history = read_history(runlog.reload())
    (report,) = history.last_reports()
    assert (report.stop_reason, report.failure.type) == (StopReason.HUNG, "HungRankError")
    assert "rank 1 hung" in report.failure.message
    assert history.committed_step == 10


@pytest.mark.soak
def test_a_node_that_does_not_answer_at_all_is_lost_and_holds_up_the_other_no_longer_than_the_rank_timeout(
    start_nodes, make_spec, open_log
):
    spec = make_spec(
        recipe="tests.recipes.ranked:even",
        ranks=NODES,
        steps=100_000,
        config={"pause_seconds": 0.01},
        checkpoints={"every_steps": 10},
        liveness={"heartbeat_seconds": 0.2, "rank_seconds": 5},
    )
    runlog = open_log(spec)
    nodes = start_nodes(Assignment(spec=spec, plan=next_plan(runlog, spec)))
    while read_history(runlog.reload()).committed_step < 10:
        assert all(process.poll() is None for process in nodes)
        time.sleep(0.1)
    frozen = ranks_of(nodes[1])
    assert len(frozen) == 1
    frozen[0].suspend()
    nodes[0].wait(timeout=240)
    (report,) = read_history(runlog.reload()).last_reports()
    assert (report.stop_reason, report.failure) == (StopReason.LOST, None)
    assert "rank 1 was lost" in report.note
