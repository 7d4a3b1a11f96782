"""The clock of a parent: the server's time, once for each parent, and sleeps that end with the parent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from segue.controller.ending import EndableClock, EndedError, Ending, Why
from segue.controller.steady_clock import Reading, SteadyClock
from segue.prefect import parent_clock as clocks
from segue.prefect.parent_clock import parent_clock, run_time, server_time, time_at, with_clock
from segue.spec import StoreSpec

AHEAD = timedelta(minutes=10)


class Server:
    """A client of a server whose clock is ahead."""

    def __init__(self, *, date=True, error=None):
        self._date, self._error = date, error

    def hello(self):
        if self._error is not None:
            raise self._error
        shown = f"{datetime.now(UTC) + AHEAD:%a, %d %b %Y %H:%M:%S GMT}"
        return httpx.Response(200, headers={"date": shown} if self._date is True else {"date": self._date or ""})


@pytest.fixture
def reference(monkeypatch):
    def read(spec):
        return lambda: Reading(datetime.now(UTC) + AHEAD, 1.0, "the Prefect server")

    monkeypatch.setattr(clocks, "_reference", read)


def ahead_by(moment):
    return (moment - datetime.now(UTC)).total_seconds()


def test_in_a_run_the_parents_clock_shows_the_servers_time(reference):
    assert ahead_by(parent_clock().now()) == pytest.approx(0, abs=60)
    with run_time(StoreSpec(url="somewhere")):
        outer = parent_clock()
        assert ahead_by(outer.now()) == pytest.approx(600, abs=60)
        with run_time(StoreSpec(url="elsewhere")):
            assert parent_clock() is outer  # One clock for all decisions.
    assert not isinstance(parent_clock(), SteadyClock)


def test_the_sleeps_of_a_parent_that_shares_its_process_still_end_with_it(reference):
    ending = Ending()
    with with_clock(EndableClock(ending)), run_time(StoreSpec(url="somewhere")):
        ending.request(Why.CANCELLED)
        with pytest.raises(EndedError):
            parent_clock().sleep(60)


def test_the_time_of_a_server_is_the_date_of_its_answer():
    assert ahead_by(server_time(Server()).at) == pytest.approx(600, abs=60)
    assert ahead_by(time_at(Server())) == pytest.approx(600, abs=60)


@pytest.mark.parametrize("server", [Server(date=""), Server(date="soon"), Server(error=httpx.ConnectError("refused"))])
def test_a_server_that_shows_no_time_leaves_that_of_this_machine(server):
    assert server_time(server) is None
    assert ahead_by(time_at(server)) == pytest.approx(0, abs=60)
