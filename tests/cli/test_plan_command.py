"""`segue plan`, as a real process: what it reports, what it refuses, and that it is quick."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from segue.records import SeenInterval, SeenPools
from segue.runlog.pool_memory import add_to_memory
from segue.stores import LocalStore
from segue.testing.clock import FakeClock
from tests.cli.test_errors import Place, refusal
from tests.controller.test_steps import Run
from tests.support.command import Desk

HOURS = """run_id = "nightly"
steps = 3600

[checkpoints]
every_seconds = 300

[policy]
step_seconds = 10.0
changeover_seconds = 360
margin_share = 0.0

[pools]
spot_price = 1.0
on_demand_price = 3.0
"""
FEW = ("--runs", "20")
FACTS = """run policy committed_step steps step_seconds step_seconds_basis work_seconds changeover_seconds deadline
remaining_seconds slack_seconds cost cost_p5 cost_p95 cost_share on_demand_cost late_share preemptions lost_seconds
finish latest_safe_moment latest_spot_start cadence cadence_interval_seconds life_seconds lost_by_a_death_seconds
traces runs seed notes policies comes_to now currency pools plans_pools_together"""


@pytest.fixture
def desk(desk) -> Desk:
    desk.write("run.toml", HOURS)
    return desk


def test_all_of_it_is_one_json_object(desk):
    before = desk.files()
    facts = desk.told("plan", "run.toml", "--deadline", "+20h", *FEW)
    assert set(facts) == set(FACTS.split())
    assert (facts["policy"], facts["work_seconds"], facts["on_demand_cost"]) == ("plan", 36000.0, pytest.approx(30.3))
    assert facts["cost_p5"] <= facts["cost"] <= facts["cost_p95"]
    assert facts["cost_share"] == pytest.approx(facts["cost"] / 30.3)
    assert facts["late_share"] == 0.0
    assert 0 < facts["lost_seconds"] <= facts["preemptions"] * facts["lost_by_a_death_seconds"] + 1e-6
    assert facts["cadence"] == "every 300 s, as configured"
    safe = datetime.fromisoformat(facts["deadline"]) - datetime.fromisoformat(facts["latest_safe_moment"])
    assert safe == timedelta(hours=10, minutes=9)
    assert [one["policy"] for one in facts["policies"]] == ["plan", "uniform_progress", "greedy", "on_demand_only"]
    assert desk.files() == before, "looking leaves nothing behind"


@pytest.mark.matrix
def test_people_get_sentences_and_a_table(tmp_path):
    place = Place(tmp_path / "place")
    place.write("run.toml", HOURS)
    outcome = place.run("plan", "run.toml", "--deadline", "+20h", *FEW)
    assert outcome.code == 0
    for words in (
        "work  10.0 h (3600 steps of 10 s, policy.step_seconds)",
        "chance of lateness  0 %: the safety clamp switches to on-demand in time, provided the step time above holds.",
        "of on-demand only (30.30 USD)",
        "figures from  20 simulated runs, seed 0",
        "latest safe moment",
        "uniform_progress",
    ):
        assert words in outcome.out


def test_without_a_deadline_nothing_is_late_and_spot_does_it_all(desk):
    facts = desk.told("plan", "run.toml", *FEW)
    assert (facts["deadline"], facts["late_share"], facts.get("latest_safe_moment")) == (None, None, None)
    assert 1 / 3 <= facts["cost_share"] < 0.5


@pytest.mark.matrix
def test_the_same_seed_gives_the_same_figures(desk):
    given = ("plan", "run.toml", "--deadline", "2099-01-01T00:00:00Z")  # So distant that seconds do not matter.
    first, again, other = (desk.told(*given, *FEW, "--work", "2h", "--seed", s) for s in ("1", "1", "2"))
    assert first["policies"][1]["cost"] == again["policies"][1]["cost"]
    assert first["policies"][1]["cost"] != other["policies"][1]["cost"]


@pytest.mark.matrix
def test_the_work_may_be_given_and_the_run_need_have_no_name_yet(desk):
    desk.write("bare.toml", "steps = 100\n")
    by_work = desk.told("plan", "bare.toml", "--work", "5h", "--deadline", "+9h", *FEW)
    by_step = desk.told("plan", "bare.toml", "--step-seconds", "180", "--deadline", "+9h", *FEW)
    assert (by_work["run"], by_work["step_seconds"], by_work["step_seconds_basis"]) == (None, 180.0, "as given")
    assert by_work["work_seconds"] == by_step["work_seconds"] == pytest.approx(18000.0)


@pytest.mark.matrix
def test_spot_that_is_always_there_costs_its_price_and_never_there_that_of_on_demand(desk):
    for name, up, share in (("up", 1, 1 / 3), ("down", 0, 1.0)):
        desk.write(f"{name}.json", json.dumps({"metadata": {"gap_seconds": 600}, "data": [up] * 200}))
        facts = desk.told("plan", "run.toml", "--deadline", "+20h", "--traces", f"{name}.json", *FEW)
        assert (facts["traces"], facts["cost_share"]) == ([name], pytest.approx(share))


def test_a_short_trace_is_not_used_and_named_in_a_note(desk):
    for name, count in (("long", 200), ("short", 30)):
        desk.write(f"traces/{name}.json", json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * count}))
    facts = desk.told("plan", "run.toml", "--deadline", "+20h", "--traces", "traces", *FEW)
    assert facts["traces"] == ["long"]
    assert facts["notes"] == ["trace short is not used: it covers only 5.0 h"]


def test_a_run_that_has_begun_is_planned_from_where_it_stands(desk, make_spec):
    run = Run(make_spec(steps=100), FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))
    run.commit(run.claim(run.decide()), 40)
    desk.write("tiny.toml", 'run_id = "tiny"\nsteps = 100\n[policy]\nstep_seconds = 100.0\nmargin_share = 0.0\n')
    store = ("--store", str(run.log.store.url))
    facts = desk.told("plan", "tiny.toml", *store, "--deadline", "+4h", *FEW)
    assert (facts["committed_step"], facts["work_seconds"]) == (40, 6000.0)
    assert "run tiny has committed step 40 of 30" in desk.refused("plan", "tiny.toml", *store, "--steps", "30")


@pytest.mark.matrix
def test_a_store_that_cannot_be_read_is_noted_and_the_plan_is_made_without_it(desk, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nothing")
    with socket.socket() as held:  # Bound and never listening: no process answers.
        held.bind(("127.0.0.1", 0))
        store = ("--store", "s3://bucket", "--endpoint-url", f"http://127.0.0.1:{held.getsockname()[1]}")
        facts = desk.told("plan", "run.toml", *store, "--deadline", "+20h", *FEW)
    assert facts["notes"][0].startswith("the run's log was not read: store s3://bucket: ")
    assert facts["committed_step"] == 0


def test_with_several_pools_the_on_demand_row_is_the_headlines_on_demand_cost(desk):
    prices = "\non_demand_price = 4.4\n[[pools.spot]]\ndeployment = 's/a'\nprice = 2.2\n"
    prices += "[[pools.spot]]\ndeployment = 's/b'\nprice = 2.6\n"
    desk.write("pools.toml", HOURS.partition("spot_price")[0] + prices)
    facts = desk.told("plan", "pools.toml", "--deadline", "+20h", *FEW)
    *rest, on_demand = facts["policies"]
    assert (on_demand["policy"], on_demand["cost"]) == ("on_demand_only", pytest.approx(facts["on_demand_cost"]))
    assert facts["on_demand_cost"] == pytest.approx(10.1 * 4.4)
    assert all(one["cost"] == pytest.approx(one["cost_share"] * facts["on_demand_cost"]) for one in rest)


def test_where_spot_is_not_cheaper_on_demand_is_planned_with_a_note(desk):
    desk.write("dear.toml", HOURS.replace("spot_price = 1.0", "spot_price = 3.0"))
    facts = desk.told("plan", "dear.toml", "--deadline", "+20h", *FEW)
    assert (facts["policy"], facts["comes_to"]) == ("plan", "on_demand_only")
    assert facts["notes"] == ["no spot pool is cheaper than on-demand"]
    assert [one["policy"] for one in facts["policies"]] == ["on_demand_only"]


@pytest.mark.matrix
def test_without_a_deadline_runs_that_had_no_spot_are_noted(desk):
    desk.write("never.json", json.dumps({"metadata": {"gap_seconds": 600}, "data": [0] * 2000}))
    facts = desk.told("plan", "run.toml", "--traces", "never.json", *FEW)
    assert facts["notes"] == [
        "without a deadline a run waits for spot; 100% of the simulated runs had too little of it in 6.9 days "
        "and are counted as finished on on-demand"
    ]
    assert (facts["latest_safe_moment"], facts["latest_spot_start"], facts["deadline"]) == (None, None, None)


PRICES = {"a": 1.2, "b": 1.0, "c": 3.5}
SEVERAL = HOURS.replace("spot_price = 1.0\n", "") + "".join(
    f'[[pools.spot]]\ndeployment = "s/{name}"\nprice = {price}\n' for name, price in PRICES.items()
)


def test_of_several_pools_each_is_told_in_the_order_of_the_requests_and_a_note_names_the_simulated_one(desk):
    desk.write("pools.toml", SEVERAL)
    facts = desk.told("plan", "pools.toml", "--deadline", "+20h", *FEW)
    told = [(each["deployment"], each["is_dearer_than_on_demand"]) for each in facts["pools"]]
    assert told == [("s/b", False), ("s/a", False), ("s/c", True)]
    after = [each["asked_after_seconds"] for each in facts["pools"]]
    assert (after[0], after[2]) == (0.0, None)
    assert after[1] > 0
    [note] = facts["notes"]
    assert note.startswith("of several spot pools only the cheapest is simulated; a run that asks them all ")
    assert facts["plans_pools_together"]
    desk.write("other.toml", SEVERAL.replace("[policy]\n", '[policy]\nname = "slack_age"\n'))
    alone = desk.told("plan", "other.toml", "--deadline", "+20h", *FEW)
    assert not alone["plans_pools_together"]
    said = desk.run("plan", "pools.toml", "--deadline", "+20h", *FEW).out
    assert "spot pool  s/b is asked at once: 1.10 USD per hour of useful work, mean life 90 min, " in said
    assert "spot pool  s/c is not asked, because it costs more than on-demand: " in said


def test_a_new_run_is_planned_with_what_earlier_runs_of_its_store_have_seen(desk):
    desk.write("pools.toml", SEVERAL.replace("[policy]\n", '[policy]\nname = "slack_age"\n'))
    store = LocalStore(desk.folder / "store").create()
    begun_at = datetime.now(UTC) - timedelta(hours=20)
    died = [
        SeenInterval(pool="s/b", log_id="x", is_up=True, begun_at=begun_at, seconds=60.0, has_ended=True),
        SeenInterval(pool="s/b", log_id="y", is_up=True, begun_at=begun_at, seconds=60.0, has_ended=True),
    ]
    add_to_memory(store, SeenPools(intervals=tuple(died)))
    where = ("--store", str(store.root))
    facts = desk.told("plan", "pools.toml", *where, "--deadline", "+20h", *FEW)
    assert [each["deployment"] for each in facts["pools"]] == ["s/a", "s/b", "s/c"]
    assert facts["pools"][1]["mean_life_seconds"] < 2000 < facts["pools"][0]["mean_life_seconds"] == 5400.0


@pytest.mark.parametrize(("hours", "named"), [(9.0, False), (10.05, True)])
def test_a_refusal_names_the_settings_that_cause_it_and_says_if_they_can_help(desk, hours, named):
    desk.write("margin.toml", HOURS.replace("margin_share = 0.0", "margin_share = 0.1"))
    said = desk.refused("plan", "margin.toml", "--deadline", f"+{hours}h")
    parts = "10.0 h of work, 60 min of margin (policy.margin_share = 0.1), 6 min to start (policy.changeover_seconds)"
    assert parts in said
    assert ("or lower the settings named here" in said) is named


@pytest.mark.matrix
def test_all_moments_are_in_one_time_zone(tmp_path):
    place = Place(tmp_path / "place")
    soon = (datetime.now(UTC) + timedelta(hours=20)).astimezone(timezone(timedelta(hours=-5)))
    place.write("run.toml", HOURS)
    said = place.run("plan", "run.toml", "--deadline", soon.isoformat(timespec="seconds"), *FEW).out
    assert f"deadline  {soon.astimezone(UTC):%Y-%m-%d %H:%M} UTC, slack" in said


@pytest.mark.matrix
def test_a_month_ahead_is_planned_within_seconds(desk):
    begun = time.process_time()
    desk.told("plan", "run.toml", "--deadline", "+30d", "--work", "24h")
    assert time.process_time() - begun < 3.0  # It takes one on an idle machine.


@pytest.mark.parametrize("number", ["inf", "1e999"])
@pytest.mark.parametrize("option", ["--step-seconds", "--save-seconds"])
def test_options_that_are_no_finite_numbers_are_refused(desk, option, number):
    said = desk.refused("plan", "run.toml", "--deadline", "+20h", option, number)
    assert f"{option}: must be a finite number (got inf)" in said


def test_a_clamp_that_permits_no_spot_is_noted(desk):
    facts = desk.told("plan", "run.toml", "--deadline", "+612m", *FEW)
    assert (facts["comes_to"], facts["preemptions"]) == ("on_demand_only", 0.0)
    assert [one["policy"] for one in facts["policies"]] == ["on_demand_only"]
    assert "the safety clamp permits no spot attempt; for a spot attempt, the deadline must be" in facts["notes"][0]


@pytest.mark.matrix
def test_a_picture_of_a_dozen_runs_is_a_png(desk):
    desk.told("plan", "run.toml", "--deadline", "+20h", *FEW, "--picture", "out.png")
    assert (desk.folder / "out.png").read_bytes().startswith(b"\x89PNG")
    message = refusal(desk.run("plan", "run.toml", "--deadline", "+20h", *FEW, "--picture", "no/where.png"))
    assert "no/where.png cannot be written" in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--deadline", "2020-01-01T00:00:00Z"], "deadline: 2020-01-01T00:00:00+00:00 has passed (it is "),
        (["--deadline", "+5h"], "the deadline is in 5.0 h and on-demand alone needs 10.1 h"),
        (
            ["--deadline", "+40h", "--save-seconds", "9000"],
            "one save takes 2.5 h, longer than the mean life of a spot machine, 2.0 h",
        ),
        (
            ["--deadline", "+40h", "--traces", "short.json"],
            "is shorter than the 5.2 min between two commits: most machines commit nothing",
        ),
        (["--deadline", "2026-12-01T06:00:00"], "deadline: '2026-12-01T06:00:00' has no time zone; add one, e.g. Z"),
        (["--deadline", "soon"], "deadline: 'soon' is not a time; write +2h"),
        (["--work", "long"], "work: 'long' is not a duration; write 24h, 8h30m, 600s or 2d"),
        (["--traces", "nowhere"], "trace nowhere cannot be read (No such file or directory)"),
        (["--deadline", "+90h", "--traces", "short.json"], "covers"),
        (["--deadline", "+40h", "--steps", "1000000000000"], "more than a hundred years"),
        (["--deadline", "+40h", "--work", "3h", "--step-seconds", "1"], "--work and --step-seconds: give one of them"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_reason(desk, given, said):
    desk.write("short.json", json.dumps({"metadata": {"gap_seconds": 60}, "data": [1, 0] * 2000}))
    if said == "covers":
        desk.write("short.json", json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * 60}))
        said = "trace short covers 10.0 h, and the job needs 3.8 days"
    assert said in desk.refused("plan", "run.toml", *given)


def test_unmeasured_work_has_to_be_given(desk):
    desk.write("bare.toml", "steps = 100\n")
    message = desk.refused("plan", "bare.toml", "--deadline", "+9h")
    assert "policy.step_seconds: is not set, and no run has measured it; set it, or give --step-seconds" in message


@pytest.mark.matrix
def test_nothing_heavy_is_loaded_for_it(desk):
    look = (
        "import sys; sys.argv = ['segue', 'plan', 'run.toml', '--runs', '20', '--deadline', '+20h', '--json']\n"
        "from segue.cli import main as cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n"
        "    heavy = [name for name in ('torch', 'prefect', 'pandas', 'matplotlib') if name in sys.modules]\n"
        "    print(end.code, heavy)"
    )
    said = subprocess.check_output([sys.executable, "-c", look], text=True, cwd=desk.folder)
    assert said.splitlines()[-1] == "0 []"
