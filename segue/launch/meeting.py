"""The place where the ranks of an attempt on several machines meet: address, port and network interface."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import closing, suppress
from fcntl import ioctl
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 12_000, 20_000
"""The ports on which ranks meet: below those that systems hand out to clients, who may take a free one at any time."""
_FIRST_FREE_PORT, _FREE_PORTS = 20_000, 12_000
"""The part of them from which a free port is chosen: Ray gives its workers ports up to 19999."""
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: netdevice(7)."""


class Nodes(NamedTuple):
    """The place of this machine among the machines on which the ranks of one attempt run."""

    how_many: int
    number: int
    """The number of this machine, from 0. Rank 0 is on machine 0."""
    address: str
    """The address of machine 0, as the others reach it."""
    port: int
    """A free port on machine 0; the ranks meet there."""


ALONE = Nodes(how_many=1, number=0, address=LOOPBACK, port=0)


def own_address(nodes: Nodes) -> str | None:
    """The IPv4 address from which this machine reaches machine 0; None if there is no way to it. Sends nothing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as made, suppress(OSError):
        made.connect((nodes.address, nodes.port or FIRST_PORT))
        address: str = made.getsockname()[0]
        return address
    return None


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address; None if none has it, or the system cannot say."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no address.
                found = ioctl(asked.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def free_port() -> int:
    """A port of this machine on which nothing listens.

    Raises:
        OSError: there is no such port.
    """
    first = random.randrange(_FREE_PORTS)  # So that two attempts do not try the same ones.
    for number in range(_FREE_PORTS):
        port = _FIRST_FREE_PORT + (first + number) % _FREE_PORTS
        with closing(socket.socket()) as made, suppress(OSError):
            made.bind(("", port))
            return port
    raise OSError("all ports on which ranks may meet are taken")
