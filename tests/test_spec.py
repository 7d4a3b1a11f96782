"""The run spec: where it comes from, what it refuses, and what each refusal tells a person to do."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from segue.errors import COMMAND_LINE, DeadlinePassedError, SpecError
from segue.policies import POLICIES
from segue.spec import RunSpec, StoreSpec, read_toml

LEAST = {"run_id": "nightly", "recipe": "examples.flights:build", "steps": 100}
DOCS = Path(__file__).parents[1] / "docs/run-spec.md"
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)

TOML = """
run_id = "nightly"
recipe = "examples.flights:build"
steps = 100
deadline = 2026-12-01T06:00:00+01:00
[config]
width = 64
layers = [1, 2, {size = 3}]
[store]
url = "s3://bucket/prefix"
endpoint_url = "http://127.0.0.1:9000"
[checkpoints]
every_steps = 20
keep = 4
[policy]
step_seconds = 0.5
"""


def refusal(**fields: object) -> str:
    with pytest.raises(SpecError) as caught:
        RunSpec.parse(LEAST | fields)
    return str(caught.value)


def test_a_toml_file_becomes_a_spec_with_every_table_in_its_place(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    spec = RunSpec.from_toml(path)
    assert spec.config == {"width": 64, "layers": [1, 2, {"size": 3}]}
    assert spec.deadline == datetime(2026, 12, 1, 5, 0, tzinfo=UTC)
    assert (spec.store.url, spec.checkpoints.keep, spec.policy.step_seconds) == ("s3://bucket/prefix", 4, 0.5)


def test_a_value_given_beside_the_file_wins_and_none_does_not(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    assert RunSpec.from_toml(path, steps=7, run_id=None).steps == 7
    assert RunSpec.from_toml(path, steps=7, run_id=None).run_id == "nightly"


def test_the_same_spec_comes_from_toml_from_plain_data_and_from_python(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    spec = RunSpec.from_toml(path)
    assert RunSpec.parse(read_toml(path)) == spec
    fields = {name: getattr(spec, name) for name in RunSpec.model_fields}
    assert RunSpec(**fields) == spec
    assert RunSpec.parse(spec) == spec


def test_a_spec_survives_the_json_that_prefect_passes_it_as(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    spec = RunSpec.from_toml(path)
    sent = json.loads(json.dumps(spec.model_dump(mode="json")))
    assert RunSpec.parse(sent) == spec
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert RunSpec.parse(sent).identity() == spec.identity()


def test_a_spec_and_its_parts_are_frozen():
    spec = RunSpec.parse(LEAST)
    with pytest.raises(ValidationError, match="frozen"):
        spec.steps = 5
    with pytest.raises(ValidationError, match="frozen"):
        spec.checkpoints.keep = 5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stepz": 3}, "stepz: no such field; did you mean 'steps'?"),
        ({"checkpoints": {"kep": 3}}, "checkpoints.kep: no such field; did you mean 'keep'?"),
        ({"store": {"uri": "x"}}, "store.uri: no such field; did you mean 'url'?"),
        (
            {"liveness": {"zzz": 1}},
            "liveness.zzz: no such field; known are heartbeat_seconds, heartbeat_timeout_seconds",
        ),
        ({"steps": "many"}, "steps: input should be a valid integer"),
        ({"steps": 0}, "steps: input should be greater than 0 (got 0)"),
        ({"checkpoints": {"keep": "three"}}, "checkpoints.keep: input should be a valid integer"),
        ({"checkpoints": {"keep": 1}}, "checkpoints.keep: input should be greater than or equal to 2"),
        ({"checkpoints": {"best": "mid"}}, "checkpoints.best: input should be 'min' or 'max'"),
        (
            {"policy": {"name": "bold"}},
            "policy.name: no such policy; known are plan, slack_age, uniform_progress, greedy",
        ),
        (
            {"policy": {"name": "threshold", "parameters": {"deaths": 2}}},
            "policy.parameters: threshold has no parameter 'deaths'; it has preemptions, slack_share",
        ),
        (
            {"policy": {"name": "threshold", "parameters": {"preemptions": 2.5}}},
            "policy.parameters: preemptions of threshold must be a positive int (got 2.5)",
        ),
        ({"checkpoints": 3}, "checkpoints: 3 is not a table; known in it are every_steps, every_seconds, keep, best"),
        ({"store": "s3://bucket"}, "store: 's3://bucket' is not a table; known in it are url, endpoint_url, region"),
        ({"store": {"endpoint_url": "here"}}, "store.endpoint_url: 'here' is not an address; write it like http://"),
        ({"config": 3}, "config: 3 is not a table; give it names and values"),
        ({"config": {"day": date(2026, 1, 1)}}, "config.day: datetime.date(2026, 1, 1) does not survive as JSON"),
        ({"config": {"clip": math.inf}}, "config.clip: inf does not survive as JSON; write it as a string"),
        ({"config": {"a": [1, {"b": math.nan}]}}, "config.a.1.b: nan does not survive as JSON"),
        ({"run_id": "Nightly Run"}, "run_id: 'Nightly Run' must be lower-case letters"),
        ({"run_id": "../up"}, "run_id: '../up' must be lower-case letters"),
        ({"recipe": "flights.py"}, "recipe: 'flights.py' is not package.module:function; write it like"),
        ({"deadline": "2026-12-01T06:00:00"}, "deadline: '2026-12-01T06:00:00' has no time zone; add one, e.g. Z"),
        ({"deadline": "+2h"}, "deadline: '+2h' is not a time; write it like 2026-12-01T06:00:00+00:00"),
        ({"deadline": [1]}, "deadline: [1] is not a time; write it like"),
    ],
)
def test_a_wrong_field_is_named_by_its_path_with_the_fix(fields, said):
    assert said in refusal(**fields)


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    ("toml", "field"),
    [
        ("grace_seconds = {}", "grace_seconds"),
        ("[checkpoints]\nevery_seconds = {}", "checkpoints.every_seconds"),
        ("[checkpoints]\nmax_work_at_risk_seconds = {}", "checkpoints.max_work_at_risk_seconds"),
        ("[anomalies]\nspike_factor = {}", "anomalies.spike_factor"),
        ("[policy]\nchangeover_seconds = {}", "policy.changeover_seconds"),
        ("[policy]\ndetection_seconds = {}", "policy.detection_seconds"),
        ("[policy]\nstep_seconds = {}", "policy.step_seconds"),
        ("[policy]\nmargin_share = {}", "policy.margin_share"),
        ("[policy.parameters]\nprior_weight = {}", "policy.parameters.prior_weight"),
        ("[liveness]\nlease_seconds = {}", "liveness.heartbeat_timeout_seconds"),
        ("[liveness]\nstart_seconds = {}", "liveness.start_seconds"),
        ("[pools]\nspot_price = {}", "pools.spot_price"),
        ("[pools]\non_demand_price = {}", "pools.on_demand_price"),
        ("[[pools.spot]]\ndeployment = 'segment/a'\nprice = {}", "pools.spot.0.price"),
    ],
)
def test_what_is_no_finite_number_is_refused(tmp_path, toml, field, number):
    path = tmp_path / "run.toml"
    path.write_text("run_id = 'nightly'\nrecipe = 'a.b:c'\nsteps = 3\n" + toml.format(number) + "\n")
    with pytest.raises(SpecError) as caught:
        RunSpec.from_toml(path)
    assert f"{field}: input should be a finite number (got {number})" in str(caught.value)


def specs(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel], FieldInfo]]:
    """Every field of a spec and of the specs in it, by its dotted path."""
    for name, field in model.model_fields.items():
        if name == "schema_version":
            continue
        yield f"{path}{name}", model, field
        for inner in parts(field.annotation):
            yield from specs(inner, f"{path}{name}.")


def parts(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {part for inner in typing.get_args(annotation) for part in parts(inner)}


FIELDS = list(specs(RunSpec))


def test_every_part_of_a_spec_refuses_what_is_not_finite():
    assert {model.__name__ for _, model, _ in FIELDS} >= {"RunSpec", "PolicySpec", "PoolSpec", "SpotPool"}
    assert [path for path, model, _ in FIELDS if model.model_config.get("allow_inf_nan") is not False] == []


def test_every_field_is_in_the_docs_with_its_default_and_what_it_means():
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    told = {line.split("`")[1]: line for line in rows}
    assert len(told) == len(rows), "a field is told twice"
    tables = {path.rpartition(".")[0] for path, _, _ in FIELDS}
    fields = {path: field for path, _, field in FIELDS if path not in tables or path == "pools.spot"}
    assert set(told) == set(fields)
    for path, field in fields.items():
        assert field.description, path
        if not field.is_required() and field.default_factory is None and path != "pools.spot":
            assert f"| {field.default!r} |" in told[path], path


def test_the_docs_name_every_policy():
    line = next(line for line in DOCS.read_text().splitlines() if line.startswith("| `policy.name`"))
    assert [name for name in POLICIES if not re.search(rf"\b{name}\b", line)] == []


def test_all_wrong_fields_are_told_at_once():
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({"steps": "many", "checkpoints": {"kep": 1}}, source="run.toml")
    assert len(caught.value.problems) == 4
    message = str(caught.value)
    assert message.startswith("run.toml is not a valid run spec: ")
    assert "run_id: is missing; give it a value" in message
    assert "recipe: is missing; give it a value" in message
    assert "\n" not in message


def test_data_that_is_no_table_at_all_is_refused():
    with pytest.raises(SpecError, match=r"the document: \[\] is not a table; known in it are"):
        RunSpec.parse([])


def test_a_store_alone_is_checked_the_same_way():
    with pytest.raises(SpecError, match="endpoint_url: 'x' is not an address"):
        StoreSpec.parse({"endpoint_url": "x"}, source=COMMAND_LINE)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory); check the path"),
        (b"steps = ", "is not TOML (Invalid value (at end of document)); fix that line"),
        (b"\xff\xfe", "is not TOML"),
    ],
)
def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path, content, said):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        RunSpec.from_toml(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(SpecError, match=r"cannot be read \(Is a directory\); check the path"):
        read_toml(tmp_path)


@pytest.mark.parametrize(("seconds", "passes"), [(-1, False), (0, False), (1, True)])
def test_a_deadline_has_to_lie_ahead(seconds, passes):
    spec = RunSpec.parse(LEAST | {"deadline": NOW + timedelta(seconds=seconds)})
    if passes:
        spec.require_future_deadline(NOW)
        return
    with pytest.raises(DeadlinePassedError, match=r"has passed \(it is .*\)\. Fix: give a later deadline, or none"):
        spec.require_future_deadline(NOW)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 200},
        {"seed": 1},
        {"recipe": "examples.flights:other"},
        {"config": {"width": 8}},
        {"config": {"deep": {"a": 2}}},
    ],
)
def test_what_makes_the_run_this_one_is_in_its_identity(fields):
    before = RunSpec.parse(LEAST | {"config": {"width": 4, "deep": {"a": 1}}})
    assert RunSpec.parse(before.model_dump() | fields).identity() != before.identity()


def test_where_when_and_how_safely_it_runs_is_not_part_of_its_identity():
    before = RunSpec.parse(LEAST)
    other = {"deadline": NOW, "store": {"url": "elsewhere"}, "threads": 2, "policy": {"name": "spot_only"}}
    assert RunSpec.parse(LEAST | other).identity() == before.identity()


def test_the_order_of_the_config_is_not_part_of_the_identity():
    one = RunSpec.parse(LEAST | {"config": {"a": {"x": 1, "y": 2}, "b": 2}})
    other = RunSpec.parse(LEAST | {"config": {"b": 2, "a": {"y": 2, "x": 1}}})
    assert one.identity() == other.identity()


def test_a_cadence_by_steps_switches_the_usual_one_off():
    usual, by_steps = RunSpec.parse(LEAST), RunSpec.parse(LEAST | {"checkpoints": {"every_steps": 5}})
    assert (usual.checkpoints.longest_seconds, by_steps.checkpoints.longest_seconds) == (600.0, None)


def test_the_default_store_is_a_folder_below_the_current_one():
    assert not Path(RunSpec.parse(LEAST).store.url).is_absolute()
