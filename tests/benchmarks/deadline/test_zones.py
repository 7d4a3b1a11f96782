"""PLAN over zones: which traces are zones of one type, what is charged, and that no run is late."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.deadline.skynomad.cases import Case, Zone
from benchmarks.deadline.skynomad.world import Machine
from benchmarks.deadline.skynomad.zones import Overlapping, groups_of, measure
from segue.errors import TraceError
from segue.simulation.traces import read_traces

TICK = 600.0


def write(folder, name: str, up, gap: float = TICK) -> None:
    facts = {"metadata": {"gap_seconds": gap}, "data": [int(value) for value in up]}
    (folder / f"{name}.json").write_text(json.dumps(facts))


def world(*ups: str, work: float = 40 * TICK, restart: float = 300.0) -> Overlapping:
    zones = tuple(
        Zone(str(at), TICK, np.array([letter == "u" for letter in up]), np.ones(len(up)), 3.0)
        for at, up in enumerate(ups)
    )
    return Overlapping(Case("", "", zones, work, len(ups[0]) * TICK, restart, 0.0, 0, {}))


def test_traces_of_one_kind_and_one_time_are_zones(tmp_path):
    for name in ("a22-us-west-2a_k80_1", "a22-us-west-2b_k80_1", "a22-us-west-2c_k80_1", "a22-us-west-2a_k80_8"):
        write(tmp_path, name, [1] * 20)
    write(tmp_path, "a22-us-east-1a_k80_1", [1] * 30)
    names = [group.name for group in groups_of(read_traces(tmp_path))]
    assert names == [
        "a22-us-west-2a+us-west-2b_k80_1",
        "a22-us-west-2a+us-west-2c_k80_1",
        "a22-us-west-2b+us-west-2c_k80_1",
        "a22-us-west-2a+us-west-2b+us-west-2c_k80_1",
    ]


def test_a_start_makes_no_progress_while_it_boots_and_a_move_pays_both_machines():
    here = world("uuuu", "uuuu")
    here.try_spot(0)
    here.pass_tick()
    assert (here.cost, here.done_seconds) == (pytest.approx(600 / 3600), 300.0)
    here.use_on_demand(0)
    here.pass_tick()
    # Half a tick of the spot machine, and a whole one of on-demand, which boots meanwhile.
    assert here.cost == pytest.approx((600 + 300 + 3 * 600) / 3600)
    assert here.done_seconds == 900.0
    assert here.machine == Machine(0, is_spot=False)


def test_a_machine_is_lost_when_its_zone_goes_down_and_its_work_is_kept():
    here = world("ud", "uu")
    here.try_spot(0)
    here.pass_tick()
    assert here.machine is None
    assert here.done_seconds == 300.0
    assert here.must_take_over is (here.time_left_seconds - here.work_left_seconds < 900.0)


@pytest.mark.matrix
def test_the_report_has_each_group_and_no_run_is_late(tmp_path):
    random = np.random.default_rng(3)
    for zone in "abc":
        up = np.logical_xor.accumulate(random.random(160) < 0.1)
        write(tmp_path, f"a22-us-west-2{zone}_k80_1", up)
    said = []
    report = measure(tmp_path, starts=1, jobs=1, say=said.append)
    assert said[-1] == "12 of 12 settings"
    assert (report["late"], report["runs"]) == (0, 12)
    assert set(report) > {"all of 2", "all of 3", "a22-us-west-2a+us-west-2b+us-west-2c_k80_1"}
    three = report["all of 3"]
    assert three["ours_vs_mean_zone"] <= three["ours_vs_best_zone"]
    # No run pays less than for its work and one boot, or much more than on-demand alone.
    assert 0.3 < three["ours_vs_best_zone"] < 1.6


def test_traces_that_are_no_zones_of_one_type_are_refused(tmp_path):
    write(tmp_path, "a22-us-west-2a_k80_1", [1] * 20)
    with pytest.raises(TraceError, match="has no two traces that differ only in their zone"):
        measure(tmp_path, starts=1, jobs=1, say=lambda _: None)
