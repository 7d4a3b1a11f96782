"""Defines the actor of one bundle, which starts the bundle's ranks as processes and answers each call immediately.

A trainer needs a main thread for its signals, so it cannot run inside an actor. If the actor's process ends for any
reason, the ranks of the actor become orphans. Orphans commit their last step and end. Ray does not end the actor if its
raylet is lost or the head restarts. The ranks then continue to train until the next attempt fences them. An actor also
ends itself if no driver has called it for a minute.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.launch.determinism import trainer_environment
from segue.launch.local import ProcessTrainer, RanksTrainer
from segue.launch.memory import RecentKills
from segue.launch.output import Line
from segue.launch.ray.problems import NodeFacts
from segue.launch.rendezvous import RAY_NODE, LaunchFolder, Nodes, free_port

_MOST_LINES = 2_000
_UNASKED_SECONDS = 60.0
"""Seconds without a call by a driver, after which the actor ends."""
_LEAVES_CHILDREN = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}
"""Setting that keeps the ranks alive if Ray ends the actor's process, so that they can commit their last step.

Source: Ray's documentation of the lifetimes of user-spawned processes.
"""
_NOT_PASSED_ON = ("RAY_", "CUDA_", "NVIDIA_", "LD_", "OMP_", "SLURM_")
"""Prefixes of variables that belong to one node."""


class RanksAnswer(BaseModel):
    """The actor's answer about its ranks."""

    code: int | None
    """Exit code of the trainer. The value is None until the trainer's ranks have ended."""
    have_left: bool
    """Whether the ranks have ended by themselves. torchrun may still wait for the ranks of other bundles."""
    lines: tuple[str, ...]
    """Lines of output since the previous answer."""
    was_out_of_memory: bool = False


def facts_here(folder: str) -> NodeFacts:
    """Collect the node, the versions and the folder of this process. Ray also calls this function as a task."""
    import ray

    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return NodeFacts(
        node_id=ray.get_runtime_context().get_node_id(),
        address=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        python=platform.python_version(),
        torch=torch,
        segue=importlib.metadata.version("segue"),
        has_folder=Path(folder).is_dir(),
    )


def shared_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the segment's environment variables for its ranks. A variable that a node itself sets keeps the value of
    the node.
    """
    return {name: value for name, value in variables.items() if not name.startswith(_NOT_PASSED_ON)}


class BundleActor:
    """Starts and controls the ranks of one bundle. No call waits for the ranks."""

    def __init__(self) -> None:
        self._trainer: ProcessTrainer | RanksTrainer | None = None
        self._kills = RecentKills()
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._clock = SystemClock()
        self._asked_at = self._clock.monotonic()

    def facts(self, folder: str) -> NodeFacts:
        return facts_here(folder)

    def free_port(self) -> int:
        """Return a free port of this node."""
        return free_port()

    def start(self, assignment: str, nodes: Nodes, *, folder: str, variables: Mapping[str, str]) -> None:
        """Start the ranks. `nodes` has the number of this bundle, and the address at which the ranks meet."""
        given = Assignment.model_validate_json(assignment)
        assert given.spec.ranks is not None
        assert given.spec.ray is not None
        count = given.spec.ranks // nodes.how_many
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        # Ray's own value applies to the whole bundle.
        os.environ["OMP_NUM_THREADS"] = str(given.spec.ray.cpus_per_rank)
        os.environ[RAY_NODE] = facts_here(folder).node_id
        os.chdir(folder)
        self._asked_at = self._clock.monotonic()
        threading.Thread(target=self._end_unasked, name="segue-unasked", daemon=True).start()
        if given.spec.ranks == 1:
            self._trainer = ProcessTrainer(given, on_line=self._keep)
            return
        env = trainer_environment(is_deterministic=given.spec.deterministic)
        self._trainer = RanksTrainer(LaunchFolder.make(given), count, on_line=self._keep, env=env, nodes=nodes)

    def look(self) -> RanksAnswer:
        """Return the state of the ranks."""
        assert self._trainer is not None, "it was started"
        self._asked_at = self._clock.monotonic()
        self._kills.look(self._asked_at)
        have_left = isinstance(self._trainer, RanksTrainer) and self._trainer.have_left
        code = self._trainer.wait(0.0)
        was_killed = code == -signal.SIGKILL
        is_memory = code is not None and self._kills.evidence(was_killed=was_killed) is not None
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        return RanksAnswer(code=code, have_left=have_left, lines=lines, was_out_of_memory=is_memory)

    def tell(self, what: str, number: int = 0) -> None:
        """Pass an order to the ranks. `what` names a method of `Trainer`, and `number` is the signal of a notice."""
        if self._trainer is None:
            return
        if what == "give_notice":
            self._trainer.give_notice(signal.Signals(number))
        else:
            {
                "dump_stacks": self._trainer.dump_stacks,
                "freeze": self._trainer.freeze,
                "thaw": self._trainer.thaw,
                "kill": self._trainer.kill,
            }[what]()

    def _end_unasked(self) -> None:
        while self._clock.monotonic() - self._asked_at < _UNASKED_SECONDS:
            self._clock.sleep(1.0)
        os._exit(1)

    def _keep(self, line: Line) -> None:
        self._lines.append(line.text)


def remote_class(ray: Any) -> Any:
    """Return the class of the actor. Ray never restarts the actor, and the actor's end does not end its ranks."""
    return ray.remote(max_restarts=0, max_task_retries=0, runtime_env=_LEAVES_CHILDREN)(BundleActor)
