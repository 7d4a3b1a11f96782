"""A Prefect worker that prepares processes and starts segments in them: `segue worker`.

While a segment trains, an engine and a trainer for the next segment wait with all modules imported. Because of this
preparation, the next segment starts two to three seconds sooner. When the worker ends, the waiting engine and trainer
also end. Other flow runs start as in any worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import runpy
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import anyio.abc
from prefect.runner import _starter_engine

from segue.flows.prefect_engine import WAIT_OPTION
from segue.prefect.refused_requests import repeat_refused_requests
from segue.process import FLOW_RUN_VARIABLE

log = logging.getLogger(__name__)

_ENGINE = "segue.flows.prefect_engine"
_OF_ONE_RUN = "PREFECT__"
"""The prefix of the variables that Prefect sets for one flow run."""
_NO_RUN = str(UUID(int=0))
"""A placeholder with the length of an id, which the process later replaces by the id of its flow run."""
_BOOT_AFTER_SECONDS = 10.0
"""Seconds from the start of a segment to the boot of the next processes, which must not delay the first step."""

RunProcess = Callable[..., Awaitable[anyio.abc.Process]]


@dataclass(frozen=True)
class _Job:
    """The settings of a waiting engine, which takes only flow runs with equal settings."""

    command: tuple[str, ...]
    cwd: str | None
    is_streamed: bool
    environment: Mapping[str, str]

    @property
    def is_segment(self) -> bool:
        return self.command[-1] == _ENGINE


class WarmEngines:
    """Replaces Prefect's `run_process`. A job whose settings equal the last job's settings gets the waiting engine."""

    def __init__(self, start_cold: RunProcess) -> None:
        self._start_cold = start_cold
        self._waiting: tuple[_Job, anyio.abc.Process] | None = None
        self._booting: set[asyncio.Task[None]] = set()

    async def run_process(
        self,
        command: list[str],
        *,
        stream_output: Any = False,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
        task_status_handler: Callable[[anyio.abc.Process], Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        **more: Any,
    ) -> anyio.abc.Process:
        """Run a command to its end, and return the process. The arguments are those of Prefect's `run_process`."""
        job = _Job(tuple(command), None if cwd is None else str(cwd), bool(stream_output), _lasting(env or {}))
        of_run = {name: text for name, text in (env or {}).items() if name not in job.environment}
        facts: dict[str, Any] = {"task_status": task_status, "task_status_handler": task_status_handler}
        if not job.is_segment or more:
            return await self._start_cold(command, stream_output=stream_output, env=env, cwd=cwd, **facts, **more)
        process = await self._give(job, of_run)
        self._boot_later(job)
        if process is None:
            return await self._start_cold(command, stream_output=stream_output, env=env, cwd=cwd, **facts)
        return await _run_to_end(process, **facts)

    async def _give(self, job: _Job, of_run: Mapping[str, str]) -> anyio.abc.Process | None:
        """Give the flow run to the waiting engine, and return its process. If no engine fits, return None."""
        if self._waiting is None or self._waiting[0] != job:
            return None
        (_, process), self._waiting = self._waiting, None
        assert process.stdin is not None
        try:
            await process.stdin.send(f"{json.dumps(of_run)}\n".encode())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.aclose()  # The engine was killed while it waited.
            return None
        await process.stdin.aclose()
        return process if process.returncode is None else None

    def _boot_later(self, job: _Job) -> None:
        for earlier in self._booting:
            earlier.cancel()
        task = asyncio.create_task(self._boot(job))
        self._booting.add(task)
        task.add_done_callback(self._booting.discard)

    async def _boot(self, job: _Job) -> None:
        await asyncio.sleep(_BOOT_AFTER_SECONDS)
        if self._waiting is not None:
            known, process = self._waiting
            if known == job and process.returncode is None:
                return
            self._waiting = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        output = None if job.is_streamed else subprocess.DEVNULL
        process = await anyio.open_process(
            [*job.command, WAIT_OPTION],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=job.cwd,
            env={**job.environment, FLOW_RUN_VARIABLE: _NO_RUN},
        )
        log.info("booted an engine and a trainer for the next segment pid=%d", process.pid)
        self._waiting = job, process


def _lasting(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if not name.startswith(_OF_ONE_RUN)}


async def _run_to_end(
    process: anyio.abc.Process,
    *,
    task_status: anyio.abc.TaskStatus[Any] | None,
    task_status_handler: Callable[[anyio.abc.Process], Any] | None,
) -> anyio.abc.Process:
    async with process:  # The process is killed if this worker is cancelled.
        if task_status is not None:
            task_status.started(task_status_handler(process) if task_status_handler is not None else process.pid)
        await process.wait()
    return process


def warm() -> None:
    """Let the workers of this process start warm engines, and repeat requests that a server on SQLite refused."""
    repeat_refused_requests()
    starter: Any = _starter_engine
    # Prefect's worker starts a process only here, and the authors of Prefect name this method as the place to override.
    starter.run_process = WarmEngines(starter.run_process).run_process


def work(arguments: list[str]) -> None:
    """Run Prefect's command line with these arguments, as `python -m prefect` does, but with warm engines."""
    warm()
    sys.argv[1:] = arguments
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    work(sys.argv[1:])
