"""The containers of pods: local processes that end as a kubelet ends them."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

POD_VARIABLE = "SEGUE_TEST_POD"
"""Marks every process of a pod, in place of a PID namespace."""
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS")


class Container:
    """The process of one pod's only container, with everything that it started."""

    def __init__(self, uid: str, process: asyncio.subprocess.Process) -> None:
        self.uid, self._process = uid, process
        self.is_lost = False
        """Whether its node is gone: nobody sees how it ends."""

    @classmethod
    async def start(cls, uid: str, container: dict[str, Any], log: Path, *, node: str) -> Container:
        """Start the command of a container of a pod on `node`; its output goes to `log`.

        Raises:
            OSError: there is no such command.
        """
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | {POD_VARIABLE: uid}
        environment |= {one["name"]: one["value"] for one in container.get("env", []) if one.get("value") is not None}
        fields = {one["name"]: one.get("valueFrom", {}).get("fieldRef") for one in container.get("env", [])}
        environment |= {name: node for name, field in fields.items() if field == {"fieldPath": "spec.nodeName"}}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *container.get("command", []),
                *container.get("args", []),
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=container.get("workingDir"),
            )
        return cls(uid, process)

    async def wait(self) -> int:
        """The exit code, as Kubernetes shows it. What the first process left is killed, as a PID namespace does."""
        code = await self._process.wait()
        self.kill()
        return code if code >= 0 else 128 - code

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the first process, SIGKILL to all after the grace period."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._process.wait()), grace_seconds)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the pod."""
        mark = f"{POD_VARIABLE}={self.uid}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
