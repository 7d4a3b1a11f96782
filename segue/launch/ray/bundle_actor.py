"""The actor of one bundle: it starts the ranks of its bundle as processes of their own, and answers at once.

A trainer needs a main thread for its signals, so that it cannot run in an actor. When the actor's process ends, for
whatever reason, its ranks are orphans: they commit their last step and end. Ray does not end it when its raylet is lost
or the head restarts: its ranks then train on, until the next attempt fences them or, after a minute in which no driver
has asked it, the actor ends by itself.
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
from segue.launch.meeting import Nodes, free_port
from segue.launch.memory import RecentKills
from segue.launch.output import Line
from segue.launch.ray.problems import NodeFacts
from segue.launch.rendezvous import LaunchFolder

_MOST_LINES = 2_000
_UNASKED_SECONDS = 60.0
"""An actor ends if no driver has asked it for this long."""
_LEAVES_CHILDREN = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}
"""Without it, an actor's process that Ray ends would kill its ranks before they have committed their last step.
Source: Ray's documentation of the lifetimes of user-spawned processes."""
_NOT_PASSED_ON = ("RAY_", "CUDA_", "NVIDIA_", "LD_", "OMP_", "SLURM_")
"""The prefixes of variables that are a node's own."""


class RanksAnswer(BaseModel):
    """The report of an actor about its ranks."""

    code: int | None
    """The trainer's exit code, once its ranks have ended."""
    have_left: bool
    """Whether they have ended by themselves; torchrun may still wait for those of other bundles."""
    lines: tuple[str, ...]
    """What they have written since the last answer."""
    was_out_of_memory: bool = False


def facts_here(folder: str) -> NodeFacts:
    """The facts about this process; also called as a task of its own."""
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
    """The environment variables of a segment's process that its ranks get if their node has no others."""
    return {name: value for name, value in variables.items() if not name.startswith(_NOT_PASSED_ON)}


class BundleActor:
    """The ranks of one bundle. No call of this actor waits for the ranks."""

    def __init__(self) -> None:
        self._trainer: ProcessTrainer | RanksTrainer | None = None
        self._kills = RecentKills()
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._clock = SystemClock()
        self._asked_at = self._clock.monotonic()

    def facts(self, folder: str) -> NodeFacts:
        return facts_here(folder)

    def free_port(self) -> int:
        """A port of this node on which nothing listens."""
        return free_port()

    def start(self, assignment: str, nodes: Nodes, *, folder: str, variables: Mapping[str, str]) -> None:
        """Start the ranks; `nodes` is the place of this bundle among all."""
        given = Assignment.model_validate_json(assignment)
        assert given.spec.ranks is not None
        assert given.spec.ray is not None
        count = given.spec.ranks // nodes.how_many
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        # Ray's own value is for the whole bundle.
        os.environ["OMP_NUM_THREADS"] = str(given.spec.ray.cpus_per_rank)
        os.chdir(folder)
        self._asked_at = self._clock.monotonic()
        threading.Thread(target=self._end_unasked, name="segue-unasked", daemon=True).start()
        if given.spec.ranks == 1:
            self._trainer = ProcessTrainer(given, on_line=self._keep)
            return
        env = trainer_environment(is_deterministic=given.spec.deterministic)
        self._trainer = RanksTrainer(LaunchFolder.make(given), count, on_line=self._keep, env=env, nodes=nodes)

    def look(self) -> RanksAnswer:
        """The state of the ranks."""
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
        """Pass on what the segment asks for: the name of a method of `Trainer`, with the signal of a notice."""
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
    """The actor as Ray starts it: once, and never again. Its end does not end its ranks."""
    return ray.remote(max_restarts=0, max_task_retries=0, runtime_env=_LEAVES_CHILDREN)(BundleActor)
