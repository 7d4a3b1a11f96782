"""One machine's part of an attempt that trains on several machines: `python -m segue.launch.node`.

It reads the assignment from standard input. `srun` starts it once on each node of a Slurm job, and gives all of them
the same input. If the attempt has a single rank, this process becomes the trainer. Otherwise it starts the ranks of
its node with torchrun, passes notices on to them, and ends with the trainer's exit code: that of rank 0 on node 0, and
0 on the others, unless they could not begin.
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
from segue.launch.meeting import FIRST_PORT, LOOPBACK, PORTS, Nodes
from segue.launch.rendezvous import LaunchFolder

_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_LOOK_SECONDS = 1.0
_OTHERS_SECONDS = 30.0
"""How long the ranks of other nodes may continue when those of this node have ended."""


def nodes_of_slurm(variables: Mapping[str, str]) -> Nodes:
    """The place of this process among the tasks of its Slurm step.

    The port follows from the job's id, so that two jobs that run on one node meet at different ports. Source: srun's
    documentation of its output environment variables; the job's script, which calls srun, runs on its first node.
    """
    return Nodes(
        how_many=int(variables["SLURM_STEP_NUM_NODES"]),
        number=int(variables["SLURM_NODEID"]),
        address=variables.get("SLURM_LAUNCH_NODE_IPADDR", LOOPBACK),
        port=FIRST_PORT + int(variables["SLURM_JOB_ID"]) % PORTS,
    )


def run_node(assignment: Assignment, nodes: Nodes) -> int:
    """Train this node's part of an attempt; return the exit code. Does not return if one process trains alone.

    Main thread only: it handles signals.
    """
    count = (assignment.spec.ranks or 0) // nodes.how_many or accelerators()
    if count * nodes.how_many == 1:
        _become_the_trainer(assignment)
    return _run_ranks(assignment, count, nodes)


def _become_the_trainer(assignment: Assignment) -> None:
    """Replace this process by the trainer: signals and the exit code are then the trainer's own."""
    given = os.memfd_create("segue-assignment", 0)
    os.write(given, assignment.model_dump_json().encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, sys.stdin.fileno())
    # Kept blocked until the trainer has handlers: it unblocks them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    env = trainer_environment(is_deterministic=assignment.spec.deterministic)
    os.execve(TRAINER_COMMAND[0], TRAINER_COMMAND, env)  # noqa: S606 - there is no shell, on purpose


def _run_ranks(assignment: Assignment, count: int, nodes: Nodes) -> int:
    env = trainer_environment(is_deterministic=assignment.spec.deterministic)
    # A job may have fewer cores than its node.
    env.setdefault("OMP_NUM_THREADS", str(max(len(os.sched_getaffinity(0)) // count, 1)))
    trainer = RanksTrainer(LaunchFolder.make(assignment), count, env=env, nodes=nodes)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        # A notice may come several times, and the ranks may have got it directly: they count it once.
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
    """The trainer's exit code. Ranks of other nodes that do not end get half a minute; torchrun would wait longer."""
    clock, left_at = SystemClock(), math.inf
    while (code := trainer.wait(_LOOK_SECONDS)) is None:
        if left_at == math.inf and trainer.have_left:
            left_at = clock.monotonic()
        if nodes.how_many > 1 and clock.monotonic() - left_at > _OTHERS_SECONDS:
            trainer.kill()
    return code


def main() -> int:
    """Run this node's part of the assignment on standard input; return the exit code."""
    # Notices are kept until they can be passed on: one may arrive meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_NOTICES, DUMP_SIGNAL))
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    return run_node(assignment, nodes_of_slurm(os.environ))


if __name__ == "__main__":
    sys.exit(main())
