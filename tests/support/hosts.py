"""Hosts on one machine: each with a network, process ids and a host name of its own, joined by a bridge."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

BRIDGE_ADDRESS = "10.213.7.1"
_LENGTH = 24
_TOOLS = ("ip", "unshare")


class HostsUnavailableError(Exception):
    """This machine does not permit network namespaces; the message says what was refused."""


class Host:
    """One host. Its link can be cut and joined again while its processes go on."""

    def __init__(self, name: str, *, number: int, bridge: str) -> None:
        self.name, self.address = name, f"10.213.7.{10 + number}"
        self._namespace = self._link = f"{bridge}-{number}"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            _run("ip", "netns", "add", self._namespace)
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
            _run("ip", "link", "set", self._link, "master", bridge, "up")
            for command in (
                ("link", "set", "lo", "up"),
                ("link", "set", "eth0", "up"),
                ("addr", "add", f"{self.address}/{_LENGTH}", "dev", "eth0"),
            ):
                _run("ip", "-n", self._namespace, *command)
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Pull the cable: packets are lost without a word, in both directions."""
        _run("ip", "link", "set", self._link, "down")

    def join(self) -> None:
        """Plug it in again."""
        _run("ip", "link", "set", self._link, "up")

    def start(self, argv: Sequence[str], *, env: dict[str, str], log: Path) -> None:
        """Start a process on this host; it and all that it starts ends with `close`."""
        # Process ids and the host name too: no check by pid on the one host can see a process of the other.
        inside = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        named = ["sh", "-c", f'hostname {self.name} && exec "$@"', "sh"]
        with log.open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self._namespace, *inside, *named, *argv],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        for command in (("link", "delete", self._link), ("netns", "delete", self._namespace)):
            subprocess.run(["ip", *command], capture_output=True, check=False)


class Network:
    """A bridge with hosts on it; the machine itself has `BRIDGE_ADDRESS` on it."""

    def __init__(self) -> None:
        self._bridge = f"sg{os.getpid() % 100_000}"
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise HostsUnavailableError("network namespaces need root")
        if absent := [name for name in _TOOLS if shutil.which(name) is None]:
            raise HostsUnavailableError(f"not installed: {', '.join(absent)}; apt-get install iproute2 util-linux")
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{BRIDGE_ADDRESS}/{_LENGTH}", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            _run("unshare", "--uts", "--pid", "--fork", "--mount-proc", "true")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.close()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)

    def add_host(self, name: str) -> Host:
        self._hosts.append(Host(name, number=len(self._hosts) + 1, bridge=self._bridge))
        return self._hosts[-1]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsUnavailableError(f"`{' '.join(command)}` was refused: {done.stderr.strip()}")
