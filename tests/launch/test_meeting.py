"""Where ranks of several machines meet."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from segue.launch import rendezvous as meeting
from segue.launch.rendezvous import ALONE, Nodes, free_port, interface_of, own_address


def test_this_machine_alone_uses_its_loopback_interface():
    assert own_address(ALONE) == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_that_no_interface_has_names_none():
    assert interface_of("192.0.2.1") is None


@pytest.mark.parametrize("address", ["name.invalid", "::1"])
def test_without_a_way_to_machine_0_its_own_name_decides(address):
    assert own_address(Nodes(how_many=2, number=1, address=address, port=12_000)) is None


def test_a_port_that_is_taken_is_left_out(monkeypatch):
    monkeypatch.setattr(meeting, "_FREE_PORTS", 1)
    with closing(socket.socket()) as taken:
        taken.bind(("", 0))
        monkeypatch.setattr(meeting, "_FIRST_FREE_PORT", taken.getsockname()[1])
        with pytest.raises(OSError, match="no free port"):
            free_port()
    assert free_port() == meeting._FIRST_FREE_PORT
