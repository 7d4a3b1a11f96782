"""The declarations of policies: the run spec, the rules and the docs all follow them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from segue.errors import SpecError
from segue.policies import POLICIES, checked_parameters, declared_policy
from segue.policy.rules.registry import named_policy
from segue.spec import PolicySpec, RunSpec

DOCS = Path(__file__).parents[2] / "docs/deadline.md"
LEAST = {"run_id": "nightly", "recipe": "examples.flights:build", "steps": 100}


def test_the_docs_list_every_policy_and_every_parameter_with_its_default():
    rows = [line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    names = {cells[1].split("`")[1] for cells in rows}
    parameters = {(cells[2].strip(" `"), cells[1].strip(" `")): cells[3].strip() for cells in rows}
    assert set(POLICIES) <= names
    for name, declared in POLICIES.items():
        for parameter in fields(declared):
            assert parameters[name, parameter.name] == f"{parameter.default:g}"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_selected_in_a_run_spec_and_has_its_declared_defaults(name):
    spec = RunSpec.parse(LEAST | {"policy": {"name": name}})
    declared, rule = declared_policy(name, spec.policy.parameters), named_policy(name)
    assert all(getattr(rule, item.name) == getattr(declared, item.name) for item in fields(declared))


def test_a_wrong_name_is_one_problem_however_wrong_its_parameters_are():
    with pytest.raises(SpecError) as caught:
        RunSpec.parse(LEAST | {"policy": {"name": "bold", "parameters": {"courage": 9}}})
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith("policy.name: no such policy; known are plan, ")


def test_the_schema_of_a_run_spec_lists_the_policies():
    assert PolicySpec.model_json_schema()["properties"]["name"]["enum"] == list(POLICIES)


def test_parameters_come_in_the_type_of_their_default():
    assert checked_parameters("threshold", {"preemptions": 2.0, "slack_share": 1}) == {
        "preemptions": 2,
        "slack_share": 1.0,
    }
    assert [type(value) for value in checked_parameters("threshold", {"preemptions": 2.0}).values()] == [int]
