"""Exchanges messages between a launcher and its ranks, as files in a folder that only these processes use.

torchrun runs between the launcher and the ranks. torchrun passes no input to the ranks, ends all ranks half a minute
after a SIGTERM, and returns one exit code for all ranks. Therefore the launcher sends notices directly to the ranks,
and each rank writes its own exit code.

The module also chooses the address, port and network interface at which the ranks of several machines meet.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import struct
import tempfile
from contextlib import closing, suppress
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple, Self

from segue.launch.assignment import Assignment
from segue.process import ProcessRef
from segue.spec import RunSpec

RANKS_VARIABLE = "SEGUE_RANKS"
"""Environment variable that segue sets for the ranks of an attempt.

torchrun's own variables may also come from outside the segment.
"""
RAY_NODE, KUBERNETES_NODE = "SEGUE_RAY_NODE", "SEGUE_KUBERNETES_NODE"
"""Environment variables with the name of the node on which ranks run: a Ray node's id, or a Kubernetes node's name."""
LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 12_000, 20_000
"""First port and number of ports at which ranks meet. Systems give only higher ports to clients."""
_FIRST_FREE_PORT, _FREE_PORTS = 20_000, 12_000
"""First port and number of ports for the choice of a free port. Ray gives its workers ports up to 19999."""
_GET_ADDRESS = 0x8915
"""The Linux request SIOCGIFADDR; see netdevice(7)."""


class LaunchFolder:
    """The launch folder of one attempt. A process may be killed before it writes its file, so each file may be
    missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, assignment: Assignment) -> Self:
        """Make a folder for ranks that this process will start."""
        folder = cls._owned()
        folder.give(assignment)
        return folder

    @classmethod
    def make_standby(cls, spec: RunSpec) -> Self:
        """Make a folder for the ranks of a standby, which boot before they have an assignment."""
        folder = cls._owned()
        (folder.path / "spec.json").write_text(spec.model_dump_json())
        return folder

    @classmethod
    def _owned(cls) -> Self:
        folder = cls(Path(tempfile.mkdtemp(prefix="segue-ranks-")))
        (folder.path / "owner").write_text(str(ProcessRef.this()))
        return folder

    @property
    def assignment(self) -> Assignment | None:
        """The assignment of the ranks. The value is None if the ranks are a standby without an assignment."""
        try:
            return Assignment.model_validate_json((self.path / "assignment.json").read_bytes())
        except FileNotFoundError:
            return None

    def give(self, assignment: Assignment) -> None:
        """Write the assignment for the ranks."""
        self._put("assignment.json", assignment.model_dump_json())

    @property
    def spec(self) -> RunSpec:
        """The run spec for which the ranks of a standby boot."""
        return RunSpec.model_validate_json((self.path / "spec.json").read_bytes())

    def boot(self, rank: int) -> None:
        """Report that this rank of a standby has booted."""
        self._put(f"booted-{rank}", os.getpid())

    def has_booted(self, count: int) -> bool:
        """Whether all ranks of a standby have booted."""
        return len(self._by_number("booted")) == count

    @property
    def owner(self) -> ProcessRef:
        """The process that started the ranks and passes notices to them."""
        return ProcessRef.parse((self.path / "owner").read_text())

    def has_owner(self) -> bool:
        """Whether the process that started the ranks still runs."""
        return self.owner.is_alive()

    def enter(self, rank: int) -> list[signal.Signals]:
        """Register this rank for signals. Return the earlier notices, as signals."""
        self._put(f"pid-{rank}", ProcessRef.this())
        return [signal.Signals(number) for number in self._by_number("notice")]

    def leave(self, rank: int, exit_code: int) -> None:
        """Write this rank's exit code if the folder still exists. After this call, the rank gets no signals."""
        with suppress(OSError):  # The rank must still end.
            self._put(f"exit-{rank}", exit_code)

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a termination notice as a signal to every rank. A rank that is starting reads the notice from the
        folder.
        """
        with suppress(OSError):  # No folder after the ranks' end.
            (self.path / f"notice-{int(number)}").touch()
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every running rank that has registered and has not called `leave`."""
        ended = self._by_number("exit")
        for rank, text in self._by_number("pid").items():
            process = ProcessRef.parse(text)
            if rank not in ended and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def leaders(self) -> list[int]:
        """Return the process id of every registered rank. Each rank leads its own process group."""
        return [ProcessRef.parse(text).pid for text in self._by_number("pid").values()]

    def exit_code(self) -> int | None:
        """Return the exit code of the lowest rank that wrote an exit code. Return None if no rank wrote an exit
        code.
        """
        codes = self._by_number("exit")
        return int(codes[min(codes)]) if codes else None

    def have_left(self, count: int) -> bool:
        """Whether `count` ranks have written their exit codes."""
        return len(self._by_number("exit")) == count

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, name: str, content: object) -> None:
        # The file is renamed into place, so a reader never sees half of it.
        half = self.path / f".{name}"
        half.write_text(str(content))
        half.rename(self.path / name)

    def _by_number(self, kind: str) -> dict[int, str]:
        """Return the contents of the files of this kind, by the rank or signal number in the file name."""
        found = {}
        for path in self.path.glob(f"{kind}-*"):
            with suppress(OSError):
                found[int(path.name.removeprefix(f"{kind}-"))] = path.read_text()
        return found


class Nodes(NamedTuple):
    """This machine's number among the machines of an attempt, and the address at which the ranks meet."""

    how_many: int
    number: int
    """Number of this machine, from 0. Rank 0 is on machine 0."""
    address: str
    """Address of machine 0 for the other machines."""
    port: int
    """Free port on machine 0, on which the ranks meet."""


ALONE = Nodes(how_many=1, number=0, address=LOOPBACK, port=0)


def own_address(nodes: Nodes) -> str | None:
    """Return this machine's IPv4 address on the route to machine 0, or None without a route. Send nothing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as made, suppress(OSError):
        made.connect((nodes.address, nodes.port or FIRST_PORT))
        address: str = made.getsockname()[0]
        return address
    return None


def interface_of(address: str) -> str | None:
    """Return the network interface with this IPv4 address. Return None if no interface has this address, or if the
    system cannot tell.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no address.
                found = ioctl(asked.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def free_port() -> int:
    """Return a free port of this machine.

    Raises:
        OSError: no port is free.
    """
    first = random.randrange(_FREE_PORTS)  # So that two attempts do not try the same ones.
    for number in range(_FREE_PORTS):
        port = _FIRST_FREE_PORT + (first + number) % _FREE_PORTS
        with closing(socket.socket()) as made, suppress(OSError):
            made.bind(("", port))
            return port
    raise OSError("no free port is left on which ranks can meet")
