"""Commands on a signed run: with the key's reference they read it, without it they say what is missing."""

from __future__ import annotations

import json

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.spec import RunSpec

SECRET = "5f" * 32


@pytest.fixture
def signed(desk, monkeypatch):
    """A signed run that has begun, in the folder of the commands."""
    monkeypatch.setenv("THE_KEY", SECRET)
    fields = {"run_id": "signed", "recipe": "segue.testing.recipes:tiny", "steps": 10}
    store = {"url": str(desk.folder / "store"), "signing_key": "env:THE_KEY"}
    open_run(RunSpec.parse(fields | {"store": store}), clock=SystemClock())
    return str(desk.folder / "store")


def test_the_status_of_a_signed_run_needs_the_reference_to_its_key(desk, signed, monkeypatch):
    outcome = desk.run("status", "signed", "--store", signed)
    assert outcome.code == 2
    assert "the log of signed is signed, but no signing key was given" in outcome.err
    assert "SEGUE_SIGNING_KEY_FROM" in outcome.err
    monkeypatch.setenv("SEGUE_SIGNING_KEY_FROM", "env:THE_KEY")
    outcome = desk.run("status", "signed", "--store", signed, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["run"] == "signed"
    assert SECRET not in outcome.out


@pytest.mark.parametrize("reference", [SECRET, "env:NO_SUCH_VARIABLE_HERE"])
def test_a_wrong_reference_is_named_without_a_key(desk, signed, monkeypatch, reference):
    monkeypatch.setenv("SEGUE_SIGNING_KEY_FROM", reference)
    outcome = desk.run("status", "signed", "--store", signed)
    assert outcome.code == 2
    assert SECRET not in outcome.err + outcome.out
    assert "signing" in outcome.err


def test_a_secret_in_the_spec_is_refused_by_its_name_before_a_run_begins(desk):
    desk.write(
        "run.toml", f'run_id = "a"\nrecipe = "segue.testing.recipes:tiny"\nsteps = 1\n[config]\npassword = "{SECRET}"'
    )
    outcome = desk.run("run", "--config", "run.toml")
    assert outcome.code == 2
    assert "config.password" in outcome.err
    assert SECRET not in outcome.err + outcome.out
