"""Current prices: from real files and commands, into the run's log; a source that fails never ends a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from segue.controller.attempt_ends import declare_lost
from segue.controller.costs import prices as prices_module
from segue.controller.costs.prices import CommandFailedError, at_current_prices, output_of, read_prices
from segue.controller.steps import check_start, decide_next, open_run
from segue.errors import PriceSourceError
from segue.records import Capacity
from segue.runlog.entries import PricesEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec
from segue.testing.clock import FakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = {"segment/spot": 0.42, "segment/on-demand": 1.3}
TOML = '"segment/spot" = 0.42\n"segment/on-demand" = 1.3\n"other/pool" = 7\n'


def pools(prices: str, **fields: object) -> PoolSpec:
    return PoolSpec.model_validate({"prices": prices} | fields)


def entries(runlog: RunLog) -> list[PricesEntry]:
    read_history(runlog.reload())
    return [slot.entry for slot in runlog.slots_from(0) if isinstance(slot.entry, PricesEntry)]


@pytest.mark.parametrize("text", [TOML, json.dumps(BOTH), "\n " + json.dumps(BOTH | {"other/pool": 7})])
def test_a_file_and_a_command_give_toml_or_json(tmp_path, text):
    file = tmp_path / "prices"
    file.write_text(text)
    assert read_prices(pools(f"file: {file}")) == BOTH
    assert read_prices(pools(f"cmd: cat '{file}'")) == BOTH


def test_without_a_source_the_prices_of_the_spec_hold():
    assert read_prices(PoolSpec()) == {}
    spec = RunSpec.parse({"run_id": "r", "recipe": "a.b:c", "steps": 3})
    assert at_current_prices(spec) is spec


def test_a_plan_is_made_at_current_prices(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(BOTH))
    fields = {"run_id": "r", "recipe": "a.b:c", "steps": 3, "pools": {"prices": f"file: {tmp_path / 'p.json'}"}}
    spec = at_current_prices(RunSpec.parse(fields))
    assert spec.pools.price(Capacity.SPOT, "segment/spot") == 0.42
    assert spec.pools.on_demand_price == 1.3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no price for segment/spot and segment/on-demand (it is empty)"),
        ("<html>login</html>", "cannot be read"),
        ("[1, 2]", "cannot be read"),
        ("{" * 5000, "cannot be read"),
        ('{"segment/spot": 0.42}', "has no price for segment/on-demand (it has 'segment/spot')"),
        ('{"segment/spot": "0.42", "segment/on-demand": 1}', "no prices above 0: segment/spot = '0.42'"),
        ('{"segment/spot": 0, "segment/on-demand": 1}', "no prices above 0: segment/spot = 0"),
        ('{"segment/spot": -1, "segment/on-demand": 1}', "no prices above 0: segment/spot = -1"),
        ('{"segment/spot": true, "segment/on-demand": 1}', "no prices above 0: segment/spot = True"),
        ('{"segment/spot": NaN, "segment/on-demand": Infinity}', "segment/spot = nan, segment/on-demand = inf"),
        ('{"segment/spot": {"a": 1}, "segment/on-demand": 1}', "no prices above 0: segment/spot = {'a': 1}"),
        ("# " + "x" * (1 << 20), "longer than 1048576 bytes"),
    ],
    ids=lambda value: value[:24],
)
def test_an_answer_that_is_no_list_of_prices_is_refused_with_what_is_wrong(tmp_path, text, why):
    file = tmp_path / "prices"
    file.write_text(text)
    for source in (f"file: {file}", f"cmd: cat {file}"):
        with pytest.raises(PriceSourceError) as raised:
            read_prices(pools(source))
        assert why in str(raised.value)
        assert " Fix: " in str(raised.value)


def test_a_file_that_is_missing_and_a_command_that_fails_are_named(tmp_path):
    with pytest.raises(PriceSourceError, match=r"the file cannot be read \(No such file or directory\)"):
        read_prices(pools(f"file: {tmp_path / 'none'}"))
    with pytest.raises(PriceSourceError, match="ended with code 3 and said 'no token'"):
        read_prices(pools("cmd: echo no token >&2; exit 3"))
    with pytest.raises(PriceSourceError, match="ended with code 127"):
        read_prices(pools("cmd: no-such-command-at-all"))


def test_a_command_that_hangs_is_ended_with_all_of_its_processes(tmp_path):
    pids = tmp_path / "pids"
    command = f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; sleep 600"
    with pytest.raises(CommandFailedError, match=r"did not end within 0.5 s"):
        output_of(command, timeout_seconds=0.5, most_bytes=100)
    left = [int(line) for line in pids.read_text().split()]
    assert len(left) == 2
    give_up_at = time.monotonic() + 30
    while any(_lives(pid) for pid in left):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_a_command_that_leaves_a_process_behind_does_not_keep_the_run_waiting():
    begun = time.monotonic()
    assert output_of("sleep 600 & echo done", timeout_seconds=60, most_bytes=100) == b"done\n"
    assert time.monotonic() - begun < 50


def test_a_hanging_command_is_an_error_before_anything_is_bought(make_spec, monkeypatch):
    monkeypatch.setattr(prices_module, "COMMAND_SECONDS", 0.2)
    with pytest.raises(PriceSourceError, match=r"did not end within 0.2 s"):
        check_start(make_spec(pools={"prices": "cmd: sleep 600"}), clock=FakeClock(START))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- in a run ----------------------------------------------------------------------------------------------------


class Priced:
    """A run whose prices are in a file that the test writes."""

    def __init__(self, make_spec: Callable[..., RunSpec], folder: Path) -> None:
        self.file, self.clock = folder / "prices.json", FakeClock(START)
        self.write()
        self.spec = make_spec(pools={"prices": f"file: {self.file}", "prices_every_seconds": 900})
        self.log = open_run(self.spec, clock=self.clock)

    def write(self, spot: float = 0.42) -> None:
        self.file.write_text(json.dumps(BOTH | {"segment/spot": spot}))

    def next_attempt(self, *, after_seconds: float = 0.0) -> None:
        """The decision of another attempt, that much later."""
        history = read_history(self.log)
        if history.open_plan is not None:
            declare_lost(self.log, history.open_plan, why="killed by the test")
        self.clock.advance(after_seconds)
        assert decide_next(self.log, self.spec, clock=self.clock).plan is not None

    def spot_prices(self) -> list[float]:
        return [entry.prices["segment/spot"] for entry in entries(self.log)]


@pytest.fixture
def priced(make_spec, tmp_path) -> Priced:
    return Priced(make_spec, tmp_path)


def test_the_start_puts_the_prices_into_the_log_before_the_first_decision(priced):
    assert priced.spot_prices() == [0.42]
    assert read_history(priced.log).decisions == ()
    priced.next_attempt()
    assert priced.spot_prices() == [0.42]
    assert read_history(priced.log).decision_prices == (BOTH,)


@pytest.mark.parametrize(("after", "asked"), [(899, False), (901, True)])
def test_prices_are_taken_again_at_a_decision_when_they_are_old(priced, after, asked):
    priced.next_attempt()
    priced.write(0.5)
    priced.next_attempt(after_seconds=after)
    assert priced.spot_prices() == ([0.42, 0.5] if asked else [0.42])


def test_a_source_that_fails_later_leaves_the_last_known_prices_and_says_why(priced, caplog):
    priced.next_attempt()
    priced.file.unlink()
    priced.next_attempt(after_seconds=1000)
    newest = entries(priced.log)[-1]
    assert (newest.prices, newest.taken_at) == (BOTH, START)
    assert newest.problem == "the file cannot be read (No such file or directory)"
    assert "new prices not read" in caplog.text
    priced.next_attempt(after_seconds=60)  # It is not asked at each decision.
    assert len(entries(priced.log)) == 2
    priced.write(0.6)
    priced.next_attempt(after_seconds=900)
    assert (priced.spot_prices()[-1], entries(priced.log)[-1].problem) == (0.6, None)


def test_a_run_that_has_prices_starts_again_although_its_source_fails(priced):
    priced.next_attempt()
    priced.file.unlink()
    open_run(priced.spec, clock=priced.clock)


def test_another_source_has_to_answer_before_the_run_goes_on_with_it(priced):
    priced.next_attempt()
    changed = priced.spec.model_copy(
        update={"pools": priced.spec.pools.model_copy(update={"prices": f"file: {priced.file}-2"})}
    )
    before = priced.log.reload().next_slot
    with pytest.raises(PriceSourceError, match="cannot be read"):
        open_run(changed, clock=priced.clock)
    assert priced.log.reload().next_slot == before


def test_a_source_that_fails_at_the_start_leaves_nothing_behind(make_spec, tmp_path):
    spec = make_spec(pools={"prices": f"file: {tmp_path / 'none'}"})
    with pytest.raises(PriceSourceError):
        open_run(spec, clock=FakeClock(START))
    assert not Path(spec.store.url, spec.run_id).exists()


def test_a_replay_of_the_log_decides_the_same_without_the_source(priced):
    priced.write(9.0)  # Dearer than on-demand.
    priced.next_attempt(after_seconds=1000)
    priced.file.unlink()
    plan = read_history(RunLog(priced.log.store, "tiny").reload()).open_plan
    assert plan is not None
    assert plan.capacity is Capacity.ON_DEMAND
