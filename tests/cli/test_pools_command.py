"""`segue pools`: the pools of a store, as its runs have seen them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from segue.records import Machine, SeenInterval, SeenMachine, SeenPools, SeenPrice, SeenStart
from segue.runlog.pool_memory import add_to_memory
from segue.stores import LocalStore

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = 3600.0


def interval(pool, begin, hours, *, up, ended=True, log="one"):
    at = BEGIN + timedelta(hours=begin)
    return SeenInterval(pool=pool, log_id=log, is_up=up, begun_at=at, seconds=hours * HOUR, has_ended=ended)


@pytest.fixture
def store(desk):
    made = LocalStore(desk.folder / "pools").create()
    add_to_memory(
        made,
        SeenPools(
            intervals=(
                interval("zone-a", 0, 0.5, up=False),
                interval("zone-a", 0.5, 6, up=True),
                interval("zone-a", 6.5, 1.5, up=False),
                interval("zone-a", 8, 12, up=True, ended=False, log="two"),
                interval("zone-b", 0, 8, up=True, log="two"),
                interval("zone-b", 8, 4, up=False, ended=False, log="two"),
            ),
            starts=(SeenStart(pool="on-demand", log_id="one", decided_at=BEGIN, seconds=240.0),),
            prices={"zone-a": SeenPrice(per_hour=0.42, currency="EUR", seen_at=BEGIN)},
        ),
    )
    return str(made.root)


def test_each_pool_has_its_price_availability_and_starts(desk, store):
    said = desk.told("pools", "--store", store)
    pools = {row["pool"]: row for row in said["pools"]}
    assert list(pools) == ["on-demand", "zone-a", "zone-b"]
    a = pools["zone-a"]
    assert (a["price_per_hour"], a["currency"], a["up_share"], a["runs"]) == (0.42, "EUR", 0.9, 2)
    assert (a["mean_life_seconds"], a["mean_wait_seconds"], a["last_state"]) == (18 * HOUR, HOUR, "up")
    assert [(age["from_hours"], age["lost_share"]) for age in a["ends_by_age"]] == [
        (0.0, 0.0),
        (0.25, 0.0),
        (1.0, 0.0),
        (4.0, 1.0),
        (16.0, None),
    ]
    assert (pools["zone-b"]["mean_wait_seconds"], pools["zone-b"]["last_state"]) == (None, "down")
    assert (pools["on-demand"]["longest_start_seconds"], pools["on-demand"]["up_share"]) == (240.0, None)
    (pair,) = said["correlations"]
    assert (pair["pools"], pair["hours"]) == (["zone-a", "zone-b"], 12.0)
    assert pair["correlation"] < 0  # While the one was up, the other was down.


def test_people_get_a_table_and_a_picture(desk, store):
    shown = desk.run("pools", "--store", store, "--picture", "pools.png")
    assert (shown.code, shown.err) == (0, "")
    assert all(word in shown.out for word in ("zone-a", "0.42 EUR", "90%", "18.0 h", "> 4.0 h", "4 min"))
    assert "correlation of zone-a and zone-b: -" in shown.out
    assert (desk.folder / "pools.png").read_bytes().startswith(b"\x89PNG")


def test_a_store_without_a_memory_and_one_that_is_not_there_say_so(desk):
    LocalStore(desk.folder / "empty").create()
    assert "No run of" in desk.run("pools", "--store", "empty").out
    assert desk.told("pools", "--store", "empty") == {"store": "empty", "pools": [], "correlations": [], "machines": []}
    missing = desk.run("pools", "--store", "nowhere")
    assert missing.code == 2
    assert "Fix:" in missing.err


def test_each_machine_has_its_evidence_and_until_when_it_is_avoided_the_bad_ones_first(desk):
    made, now = LocalStore(desk.folder / "machines").create(), datetime.now(UTC)
    common = {"pool": "zone-a", "log_id": "one", "segment": 0, "begun_at": now, "seconds": 0.0, "zone": "eu-west-1b"}
    bad, box = Machine(kind="slurm", name="n7", devices=("GPU-1",)), Machine(kind="host", name="box")
    add_to_memory(
        made,
        SeenPools(
            machines=(
                SeenMachine(machine=bad, attempt=1, end="wrong_numbers", why="a product was wrong", **common),
                SeenMachine(machine=bad, attempt=2, end="died", slowness=1.25, **common),
                SeenMachine(machine=box, attempt=3, end="check_failed", why="disk: full", **common),
                SeenMachine(machine=Machine(kind="slurm", name="n8"), attempt=4, end="ended", **common),
            )
        ),
    )
    said = desk.told("pools", "--store", str(made.root))["machines"]
    assert [each["machine"] for each in said] == ["n7", "box", "n8"]
    first, second, third = said
    assert (first["wrong_numbers"], first["deaths"], first["slowness"], first["zone"]) == (1, 1, 1.25, "eu-west-1b")
    assert (first["devices"], first["why"]) == (["GPU-1"], "a product was wrong")
    assert datetime.fromisoformat(first["avoided_until"]) > now + timedelta(days=1)
    assert (second["can_be_avoided"], second["failed_checks"]) == (False, 1)
    assert (third["avoided_until"], third["why"]) == (None, None)
    table = desk.run("pools", "--store", str(made.root)).out
    assert "wrong" in table
    assert "hangs" not in table  # No machine hung, so the column would only take room.
