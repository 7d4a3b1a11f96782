"""Runs one node's part of an attempt on several nodes. The command is `python -m segue.launch.node`.

The process reads the assignment from standard input. `srun` starts the process once on each node of a Slurm job, with
the same input on every node. If the attempt has a single rank, this process becomes the trainer. If the attempt has
several ranks, the process starts the ranks of its node with torchrun, and passes notices to the ranks. On node 0, the
exit code of the process is the exit code of rank 0. On other nodes, the exit code is 0 if the ranks could begin.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

from segue.clock import SystemClock
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.determinism import trainer_environment
from segue.launch.local import DUMP_SIGNAL, TRAINER_COMMAND, RanksTrainer, accelerators
from segue.launch.rendezvous import FIRST_PORT, LOOPBACK, PORTS, LaunchFolder, Nodes

_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_LOOK_SECONDS = 1.0
_OTHERS_SECONDS = 30.0
"""Seconds for which ranks of other nodes may continue after the ranks of this node have ended."""


def nodes_of_slurm(variables: Mapping[str, str]) -> Nodes:
    """Read this node's number, and the address at which the ranks meet, from the variables of the Slurm step.

    The port is computed from the job's id, so that two jobs on one node use different ports. The job's script runs on
    the first node and calls srun. Source: srun's documentation of its output environment variables.
    """
    return Nodes(
        how_many=int(variables["SLURM_STEP_NUM_NODES"]),
        number=int(variables["SLURM_NODEID"]),
        address=variables.get("SLURM_LAUNCH_NODE_IPADDR", LOOPBACK),
        port=FIRST_PORT + int(variables["SLURM_JOB_ID"]) % PORTS,
    )


def run_node(assignment: Assignment, nodes: Nodes) -> int:
    """Train this node's part of an attempt, and return the exit code.

    If one process trains alone, the function does not return. Only the main thread may call the function, because the
    function handles signals.
    """
    count = (assignment.spec.ranks or 0) // nodes.how_many or accelerators()
    if count * nodes.how_many == 1:
        _become_the_trainer(assignment)
    return _run_ranks(assignment, count, nodes)


def _become_the_trainer(assignment: Assignment) -> None:
    """Replace this process by the trainer, so that the trainer gets the signals and sets the exit code."""
    given = os.memfd_create("segue-assignment", 0)
    os.write(given, assignment.model_dump_json().encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, sys.stdin.fileno())
    # The signals stay blocked until the trainer has its handlers and unblocks them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    env = trainer_environment(is_deterministic=assignment.spec.deterministic)
    os.execve(TRAINER_COMMAND[0], TRAINER_COMMAND, env)  # noqa: S606 - there is no shell, on purpose


def _run_ranks(assignment: Assignment, count: int, nodes: Nodes) -> int:
    env = trainer_environment(is_deterministic=assignment.spec.deterministic)
    # The job may have fewer cores than the node.
    env.setdefault("OMP_NUM_THREADS", str(max(len(os.sched_getaffinity(0)) // count, 1)))
    trainer = RanksTrainer(LaunchFolder.make(assignment), count, env=env, nodes=nodes)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        # A notice may come several times, and may also go directly to the ranks. The ranks count it only once.
        trainer.give_notice(signal.Signals(signum))

    def dump(signum: int, frame: FrameType | None) -> None:
        trainer.dump_stacks()

    for number in _NOTICES:
        signal.signal(number, pass_on)
    signal.signal(DUMP_SIGNAL, dump)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_NOTICES, DUMP_SIGNAL))
    code = _wait(trainer, nodes)
    return code if nodes.number == 0 or code == ExitCode.USAGE else 0


def _wait(trainer: RanksTrainer, nodes: Nodes) -> int:
    """Wait for the trainer's exit code. If ranks of other nodes still run half a minute after the ranks of this node,
    kill the trainer."""
    clock, left_at = SystemClock(), math.inf
    while (code := trainer.wait(_LOOK_SECONDS)) is None:
        if left_at == math.inf and trainer.have_left:
            left_at = clock.monotonic()
        if nodes.how_many > 1 and clock.monotonic() - left_at > _OTHERS_SECONDS:
            trainer.kill()
    return code


def main() -> int:
    """Run this node's part of the assignment from standard input. Return the exit code."""
    # Signals are blocked until they can be passed on, because a notice may arrive before that.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_NOTICES, DUMP_SIGNAL))
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    return run_node(assignment, nodes_of_slurm(os.environ))


if __name__ == "__main__":
    sys.exit(main())
