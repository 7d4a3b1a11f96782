"""Starts trainers on this machine: one child process, or several ranks that torchrun starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from segue.launch.assignment import Assignment
from segue.launch.child import ChildProcess, end_leftovers
from segue.launch.determinism import trainer_environment
from segue.launch.output import OnLine
from segue.launch.rendezvous import ALONE, RANKS_VARIABLE, LaunchFolder, Nodes, interface_of, own_address
from segue.process import ProcessRef
from segue.spec import RunSpec

DUMP_SIGNAL = signal.SIGUSR2
"""Signal at which a trainer writes the stacks of all its threads to standard error."""

TRAINER_COMMAND = (sys.executable, "-m", "segue.trainer.main")
EARLY_OPTION = "--early"
"""Option with which a trainer imports all modules before it reads its assignment."""


def launch_here(assignment: Assignment, *, on_line: OnLine | None = None) -> ProcessTrainer | RanksTrainer:
    """Start the trainer for an assignment as a child of this process."""
    count = assignment.spec.ranks or accelerators()
    if count > 1:
        env = trainer_environment(is_deterministic=assignment.spec.deterministic)
        return RanksTrainer(LaunchFolder.make(assignment), count, on_line=on_line, env=env)
    return ProcessTrainer(assignment, on_line=on_line)


def launch_standby_here(spec: RunSpec, *, on_line: OnLine | None = None) -> StandbyProcess | RanksTrainer:
    """Start a standby's trainer as a child of this process, before it has an assignment."""
    count = spec.ranks or accelerators()
    folder = LaunchFolder.make_standby(spec)
    env = trainer_environment(is_deterministic=spec.deterministic)
    if count > 1:
        return RanksTrainer(folder, count, on_line=on_line, env=env)
    return StandbyProcess(folder, on_line=on_line, env=env)


class _OnThisMachine:
    """Base class of all trainers on this machine."""

    ending = None

    def why_waiting(self) -> str | None:
        return None


class ProcessTrainer(_OnThisMachine):
    """A child process in a separate session. A signal to the parent's process group therefore reaches the child only
    once.
    """

    def __init__(
        self, assignment: Assignment, *, on_line: OnLine | None = None, child: ChildProcess | None = None
    ) -> None:
        """Start the process. If `child` is given, use `child`, which already waits for its assignment."""
        env = trainer_environment(is_deterministic=assignment.spec.deterministic)
        self._child = child or ChildProcess(TRAINER_COMMAND, has_stdin=True, has_output=on_line is not None, env=env)
        self._child.give(assignment.model_dump_json())
        self._child.relay_to(on_line)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def poll(self) -> int | None:
        return self._child.process.poll()

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._child.process.send_signal(number)

    def is_known_to_run(self) -> bool:
        return not ProcessRef.of(self.pid).is_stopped()

    def dump_stacks(self) -> None:
        self._child.process.send_signal(DUMP_SIGNAL)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        return self._child.wait(timeout_seconds)

    def freeze(self) -> None:
        self._child.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._child.kill()


class StandbyProcess(ProcessTrainer):
    """A child process that gets its assignment through a launch folder."""

    def __init__(
        self, folder: LaunchFolder, *, on_line: OnLine | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._child = ChildProcess([*TRAINER_COMMAND, str(folder.path)], has_output=on_line is not None, env=env)
        self._child.relay_to(on_line)

    def is_booted(self) -> bool:
        return self._folder.has_booted(1)

    def take(self, assignment: Assignment) -> None:
        self._folder.give(assignment)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        code = super().wait(timeout_seconds)
        if code is not None:
            self._folder.remove()
        return code


class RanksTrainer(_OnThisMachine):
    """Several ranks on this machine, which torchrun starts."""

    def __init__(
        self,
        folder: LaunchFolder,
        count: int,
        *,
        on_line: OnLine | None = None,
        env: Mapping[str, str] | None = None,
        nodes: Nodes = ALONE,
    ) -> None:
        """Start `count` ranks on this machine. If there are several `nodes`, use the same count on every node."""
        self._folder, self._count = folder, count
        self._ended_with: int | None = None
        torchrun = [sys.executable, "-m", "segue.launch.torchrun", *_meeting(nodes)]
        how_many = ["--nproc-per-node", str(count), "--max-restarts", "0"]
        ranks = [*TRAINER_COMMAND[1:], str(self._folder.path)]
        command, has_output = [*torchrun, *how_many, *ranks], on_line is not None
        self._child = ChildProcess(command, has_output=has_output, env=_environment(count, env or os.environ, nodes))
        self._child.relay_to(on_line)

    def is_booted(self) -> bool:
        return self._folder.has_booted(self._count)

    def take(self, assignment: Assignment) -> None:
        self._folder.give(assignment)

    @property
    def have_left(self) -> bool:
        """Whether all ranks of this machine have ended by themselves. torchrun may still wait for ranks elsewhere."""
        return self._folder.have_left(self._count)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def poll(self) -> int | None:
        code = self._child.process.poll()
        return code if code is None else self._code_of_ranks(code)

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        # torchrun does not get the notice, because it would end the ranks before they have saved.
        self._folder.give_notice(number)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        code = self._child.wait(timeout_seconds)
        if code is None:
            return None
        code = self._code_of_ranks(code)
        for rank in self._folder.leaders():  # torchrun starts each rank in a session of its own.
            end_leftovers(rank)
        self._folder.remove()
        return code

    def is_known_to_run(self) -> bool:
        return not any(ProcessRef.of(pid).is_stopped() for pid in (self.pid, *self._folder.leaders()))

    def dump_stacks(self) -> None:
        self._folder.signal(DUMP_SIGNAL)

    def freeze(self) -> None:
        self._folder.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._folder.signal(signal.SIGCONT)

    def kill(self) -> None:
        for rank in self._folder.leaders():
            with suppress(ProcessLookupError):
                os.killpg(rank, signal.SIGKILL)
        self._child.kill()

    def _code_of_ranks(self, code: int) -> int:
        if self._ended_with is None:
            found = self._folder.exit_code()
            self._ended_with = code if found is None else found
        return self._ended_with


def _meeting(nodes: Nodes) -> list[str]:
    """Return the options of torchrun that set the address at which the ranks meet."""
    own = own_address(nodes)
    local = ["--local-addr", own] if own is not None else []
    if nodes.how_many == 1:
        return ["--standalone", *local]
    where = ["--master-addr", nodes.address, "--master-port", str(nodes.port)]
    return ["--nnodes", str(nodes.how_many), "--node-rank", str(nodes.number), *where, *local]


def _environment(count: int, given: Mapping[str, str], nodes: Nodes) -> dict[str, str]:
    env = {**given, RANKS_VARIABLE: str(count * nodes.how_many)}
    # By default, torchrun gives each rank only one thread.
    env.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // count, 1)))
    # Hide DistributedDataParallel's warning about the search for unused parameters, which is intended.
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # By default, Gloo uses the interface of the machine's own name, which may not resolve, or may resolve to loopback.
    own = own_address(nodes)
    interface = interface_of(own) if own is not None else None
    if interface is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
    return env


def accelerators() -> int:
    """Return the number of accelerators of this machine. A separate process asks torch, so that this process does not
    import torch.
    """
    ask = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return int(found.stdout) if found.returncode == 0 else 1
