"""`python -m benchmarks simulate`: its figures, its table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.__main__ import app
from segue.errors import SegueError

SMALL = ("--runs", "30", "--work", "4h")
FIGURES = """policy cost_share cost_share_low cost_share_high cost_share_p5 cost_share_p95 to_uniform_progress
to_uniform_progress_low to_uniform_progress_high to_optimum missed runs preemptions sentinel_seconds"""


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*arguments: str) -> dict:
    return json.loads(said(*arguments, "--json"))


def test_policies_are_compared_in_one_json_object():
    asked = ("plan", "greedy", "threshold:preemptions=1")
    given = [part for policy in asked for part in ("--policy", policy)]
    facts = told(*given, *SMALL, "--optimum")
    assert {"total_seconds", "work_seconds", "changeover_seconds", "price_ratio", "knowledge", "handover"} < set(facts)
    assert (facts["runs"], facts["seed"], facts["traces"], facts["left_out"]) == (30, 0, ["synthetic"], [])
    assert facts["total_seconds"] == pytest.approx(4 * 3600 / 0.7)
    assert [one["policy"] for one in facts["policies"]] == list(asked)
    assert all(set(one) == set(FIGURES.split()) for one in facts["policies"])
    assert all(one["missed"] == 0 and 1 / 3 < one["cost_share"] < 1.1 for one in facts["policies"])
    assert all(one["to_optimum"] >= 0.99 for one in facts["policies"])


def test_the_same_seed_gives_the_same_figures():
    first, again, other = (told("--policy", "greedy", *SMALL, "--seed", seed) for seed in "112")
    assert first == again
    assert first["policies"] != other["policies"]


@pytest.mark.matrix
def test_people_get_a_table_within_eighty_columns():
    lines = said(*SMALL).splitlines()
    assert lines[0] == "4.0 h of work in 5.7 h, price ratio 3, 30 runs; availability synthetic, from published hazards"
    table = [line for line in lines[1:] if line.strip()]
    assert {line.split()[0] for line in table} > {"plan", "slack_age", "uniform_progress", "greedy", "on_demand_only"}
    assert max(len(line.rstrip()) for line in table) <= 80


def test_traces_replace_synthetic_availability(tmp_path):
    for name, data in (("up", [1] * 100), ("down", [0] * 100), ("short", [1] * 5)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data}))
    facts = told("--policy", "greedy", "--traces", str(tmp_path), *SMALL)
    assert (facts["traces"], facts["left_out"]) == (["down", "up"], ["short"])
    assert facts["policies"][0]["cost_share"] == pytest.approx((1 + 1 / 3) / 2)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (["--policy", "patient"], "policy 'patient': no such policy; known are plan, slack_age, uniform_progress"),
        (["--policy", "threshold:slack=1"], "threshold has no parameter 'slack'; it has preemptions, slack_share"),
        (["--work", "24"], "work: '24' is not a duration; write 24h, 8h30m, 600s or 2d"),
        (
            ["--deadline", "2h", "--work", "2h"],
            "the deadline is 2.0 h after the start and on-demand alone needs 2.1 h. Fix: give a later",
        ),
        (["--price-ratio", "inf"], "--price-ratio: must be a finite number (got inf)"),
        (["--traces", "x", "--up-factor", "3"], "--up-factor and --down-factor: are for synthetic traces"),
        (["--traces", "nowhere"], "trace nowhere cannot be read (No such file or directory). Fix: check the path"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_fix(given, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SegueError, typer.BadParameter)) as caught:
        said(*given)
    assert refusal in " ".join(str(caught.value).split())
    assert list(Path().iterdir()) == []
