"""Address, port and network interface at which the ranks of an attempt on several machines meet."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import closing, suppress
from fcntl import ioctl
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 12_000, 20_000
"""First port and number of ports for the meeting of ranks. These ports are below the ports that systems give to
clients."""
_FIRST_FREE_PORT, _FREE_PORTS = 20_000, 12_000
"""First port and number of ports from which a free port is chosen. Ray gives its workers ports up to 19999."""
_GET_ADDRESS = 0x8915
"""The Linux request SIOCGIFADDR; see netdevice(7)."""


class Nodes(NamedTuple):
    """This machine's number among the machines of an attempt, and the meeting point of the ranks."""

    how_many: int
    number: int
    """Number of this machine, from 0. Rank 0 is on machine 0."""
    address: str
    """Address of machine 0 for the other machines."""
    port: int
    """Free port on machine 0, on which the ranks meet."""


ALONE = Nodes(how_many=1, number=0, address=LOOPBACK, port=0)


def own_address(nodes: Nodes) -> str | None:
    """IPv4 address of this machine on the route to machine 0; None if there is no route. The function sends nothing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as made, suppress(OSError):
        made.connect((nodes.address, nodes.port or FIRST_PORT))
        address: str = made.getsockname()[0]
        return address
    return None


def interface_of(address: str) -> str | None:
    """Network interface with this IPv4 address; None if no interface has this address, or if the system cannot tell."""
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
