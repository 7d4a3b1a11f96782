"""`segue simulate`, as a real process."""

from __future__ import annotations

import json
import typing
from datetime import UTC, datetime

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from segue.cli.main import app
from segue.cli.planning.simulate import Known
from segue.policy.rules.view import Knowledge
from segue.testing.clock import FakeClock
from tests.cli.test_errors import Place
from tests.controller.test_steps import Run

SMALL = ("--runs", "30", "--work", "4h")
FIGURES = """policy cost_share cost_share_low cost_share_high cost_share_p5 cost_share_p95 to_uniform_progress
to_uniform_progress_low to_uniform_progress_high to_optimum missed runs preemptions lost_seconds sentinel_seconds"""


def test_policies_are_compared_in_one_json_object(desk):
    asked = ("plan", "greedy", "threshold:preemptions=1")
    given = [part for policy in asked for part in ("--policy", policy)]
    facts = desk.told("simulate", *given, *SMALL, "--optimum")
    assert {"total_seconds", "work_seconds", "changeover_seconds", "price_ratio", "knowledge", "handover"} < set(facts)
    assert (facts["runs"], facts["seed"], facts["traces"], facts["left_out"]) == (30, 0, ["synthetic"], [])
    assert facts["total_seconds"] == pytest.approx(4 * 3600 / 0.7)
    assert [one["policy"] for one in facts["policies"]] == list(asked)
    assert all(set(one) == set(FIGURES.split()) for one in facts["policies"])
    assert all(one["missed"] == 0 and 1 / 3 < one["cost_share"] < 1.1 for one in facts["policies"])
    assert all(one["to_optimum"] >= 0.99 for one in facts["policies"])


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_the_help_of_every_option_is_shown_in_full(command):
    """Text in [brackets] would be lost to the markup of the terminal, and long words to the width of their column."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    words = {word for option in get_command(app).commands[command].params for word in (option.help or "").split()}
    assert {word for word in words if word not in shown} == set()


def test_the_knowledge_option_has_the_values_that_a_job_has():
    assert [each.value for each in Known] == list(typing.get_args(Knowledge))


@pytest.mark.matrix
def test_the_same_seed_gives_the_same_figures(desk):
    first, again, other = (desk.told("simulate", "--policy", "greedy", *SMALL, "--seed", seed) for seed in "112")
    assert first == again
    assert first["policies"] != other["policies"]


@pytest.mark.matrix
def test_people_get_a_table_within_eighty_columns(tmp_path):
    outcome = Place(tmp_path / "place").run("simulate", *SMALL)
    assert outcome.code == 0
    assert (
        "4.0 h of work in 5.7 h, price ratio 3, 30 runs; availability synthetic, from published hazards" in outcome.out
    )
    table = [line for line in outcome.out.splitlines()[1:] if line.strip()]
    assert {line.split()[0] for line in table} > {"plan", "slack_age", "uniform_progress", "greedy", "on_demand_only"}
    assert max(len(line.rstrip()) for line in table) <= 88


def test_traces_replace_synthetic_availability(desk):
    for name, data in (("up", [1] * 100), ("down", [0] * 100), ("short", [1] * 5)):
        desk.write(f"traces/{name}.json", json.dumps({"metadata": {"gap_seconds": 600}, "data": data}))
    facts = desk.told("simulate", "--policy", "greedy", "--traces", "traces", *SMALL)
    assert (facts["traces"], facts["left_out"]) == (["down", "up"], ["short"])
    assert facts["policies"][0]["cost_share"] == pytest.approx((1 + 1 / 3) / 2)


def test_the_log_of_a_run_can_be_the_trace(desk, make_spec):
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    run = Run(make_spec(steps=100), clock)
    plan = run.decide()
    clock.sleep(3600.0)
    run.commit(run.claim(plan), 40)
    store = ("--store", str(run.log.store.url))
    given = ("--policy", "greedy", "--work", "20m", "--deadline", "40m", "--changeover", "1m", "--runs", "4")
    facts = desk.told("simulate", "--run", "tiny", *store, *given)
    assert (facts["traces"], facts["policies"][0]["cost_share"]) == (["tiny"], pytest.approx(1.0))
    assert "no run 'other' in " in desk.refused("simulate", "--run", "other", *store, *given)


def test_a_run_that_never_observed_spot_is_no_trace(desk, make_spec):
    run = Run(make_spec(steps=100), FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))
    run.decide()
    message = desk.refused("simulate", "--run", "tiny", "--store", str(run.log.store.url))
    assert (
        "trace of run tiny is empty: it observed spot for less than a minute. Fix: give a run that was on spot"
        in message
    )


def test_the_picture_is_a_png(desk):
    desk.told("simulate", "--policy", "greedy", *SMALL, "--picture", "out.png")
    assert (desk.folder / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--policy", "patient"], "policy 'patient': no such policy; known are plan, slack_age, uniform_progress"),
        (["--policy", "threshold:slack=1"], "threshold has no parameter 'slack'; it has preemptions, slack_share"),
        (["--work", "24"], "work: '24' is not a duration; write 24h, 8h30m, 600s or 2d"),
        (
            ["--deadline", "2h", "--work", "2h"],
            "the deadline is 2.0 h after the start and on-demand alone needs 2.1 h. Fix: give a later",
        ),
        (["--price-ratio", "inf"], "--price-ratio: must be a finite number (got inf)"),
        (["--save-seconds", "300"], "--save-seconds: has no effect without --save-every; give both"),
        (
            ["--save-seconds", "300", "--save-every", "10m"],
            "the deadline is 34.3 h after the start and on-demand alone needs 36.1 h",
        ),
        (["--traces", "x", "--up-factor", "3"], "--up-factor and --down-factor: are for synthetic traces"),
        (["--traces", "nowhere"], "trace nowhere cannot be read (No such file or directory). Fix: check the path"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_fix(desk, given, said):
    assert said in desk.refused("simulate", *given)
