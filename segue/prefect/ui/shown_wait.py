"""Shows each wait for a machine as a task run in the graph of the parent's flow run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from prefect import Task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.states import Completed, Running

from segue.clock import Clock
from segue.prefect.messenger import Message
from segue.units import duration

Deliver = Callable[[Message], None]


class ShownWait:
    """Shows the waits of one attempt: for capacity, for the back-off, and for the boot. Each wait is a separate task
    run.
    """

    def __init__(self, deliver: Deliver, *, clock: Clock) -> None:
        """`deliver` sends a request in the background, as a messenger does."""
        self._deliver, self._clock = deliver, clock
        self._node: _Node | None = None

    def show(self, waiting: str | None) -> None:
        """Show this text as the reason why the attempt waits. None means that the attempt has a machine or has
        ended.
        """
        name = None if waiting is None else waiting.partition(": ")[0]
        if self._node is not None and self._node.name != name:
            self._node.end(self._clock.monotonic())
            self._deliver(self._node.send)
            self._node = None
        context = TaskRunContext.get()
        if name is None or waiting is None or context is None or context.task_run.flow_run_id is None:
            return
        if self._node is None:
            now = self._clock.monotonic()
            self._node = _Node(name, task=context.task, flow_run_id=context.task_run.flow_run_id, began_at=now)
        self._node.why = waiting
        self._deliver(self._node.send)


class _Node:
    """One task run in the graph. Each request sends the full state of the task run, so a repeated request is safe."""

    def __init__(self, name: str, *, task: Task[..., object], flow_run_id: UUID, began_at: float) -> None:
        self.name, self.why = name, name
        self._task, self._flow_run_id, self._id = task, flow_run_id, uuid4()
        self._began_at, self._seconds = began_at, 0.0
        self._is_created = self._has_ended = False

    def end(self, now: float) -> None:
        self._has_ended, self._seconds = True, now - self._began_at

    def send(self, client: SyncPrefectClient) -> None:
        state: State[Any] = Running(message=self.why)
        if not self._is_created:
            facts: dict[str, Any] = {"id": self._id, "dynamic_key": str(self._id), "name": self.name, "state": state}
            client.create_task_run(self._task, self._flow_run_id, **facts)
            self._is_created = True
        if self._has_ended:
            state = Completed(message=f"{self.why}; for {duration(self._seconds)} since it was first shown")
        client.set_task_run_state(self._id, state, force=True)
