"""The run spec: its sources, the values that it refuses, and the remedy that each refusal names."""

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


def test_an_override_replaces_the_value_of_the_file_and_none_does_not(tmp_path):
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


def test_a_spec_is_equal_after_the_json_that_prefect_passes(tmp_path):
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
    ("fields", "expected"),
    [
        ({"stepz": 3}, "stepz: unknown field; did you mean 'steps'?"),
        ({"checkpoints": {"kep": 3}}, "checkpoints.kep: unknown field; did you mean 'keep'?"),
        ({"store": {"uri": "x"}}, "store.uri: unknown field; did you mean 'url'?"),
        (
            {"liveness": {"zzz": 1}},
            "liveness.zzz: unknown field; known fields are heartbeat_seconds, heartbeat_timeout_seconds",
        ),
        ({"steps": "many"}, "steps: input should be a valid integer"),
        ({"steps": 0}, "steps: input should be greater than 0 (got 0)"),
        ({"checkpoints": {"keep": "three"}}, "checkpoints.keep: input should be a valid integer"),
        ({"checkpoints": {"keep": 1}}, "checkpoints.keep: input should be greater than or equal to 2"),
        ({"checkpoints": {"best": "mid"}}, "checkpoints.best: input should be 'min' or 'max'"),
        (
            {"policy": {"name": "bold"}},
            "policy.name: no such policy; known are plan, slack_age, uniform_progress, eager_progress, greedy",
        ),
        (
            {"policy": {"name": "threshold", "parameters": {"deaths": 2}}},
            "policy.parameters: threshold has no parameter 'deaths'; it has preemptions, slack_share",
        ),
        (
            {"policy": {"name": "threshold", "parameters": {"preemptions": 2.5}}},
            "policy.parameters: preemptions of threshold must be a positive int (got 2.5)",
        ),
        (
            {"checkpoints": 3},
            "checkpoints: must be a table (got 3); its fields are every_steps, every_seconds, every_epochs, keep, best",
        ),
        (
            {"store": "s3://bucket"},
            "store: must be a table (got 's3://bucket'); its fields are url, endpoint_url, region",
        ),
        ({"store": {"endpoint_url": "here"}}, "store.endpoint_url: must be a URL (got 'here'); example: http://"),
        ({"config": 3}, "config: must be a table (got 3)"),
        ({"config": {"day": date(2026, 1, 1)}}, "config.day: must be a JSON value (got datetime.date(2026, 1, 1))"),
        ({"config": {"clip": math.inf}}, "config.clip: must be a JSON value (got inf); use a string"),
        ({"config": {"a": [1, {"b": math.nan}]}}, "config.a.1.b: must be a JSON value (got nan)"),
        (
            {"run_id": "Nightly Run"},
            "run_id: must be 1 to 63 lower-case letters, digits, '.', '_' or '-' (got 'Nightly Run')",
        ),
        ({"run_id": "../up"}, "run_id: must be 1 to 63 lower-case letters, digits, '.', '_' or '-' (got '../up')"),
        ({"recipe": "flights.py"}, "recipe: must be package.module:function (got 'flights.py'); example: "),
        (
            {"deadline": "2026-12-01T06:00:00"},
            "deadline: must have a time zone (got '2026-12-01T06:00:00'); add one, e.g. Z",
        ),
        ({"deadline": "+2h"}, "deadline: must be a time (got '+2h'); example: 2026-12-01T06:00:00+00:00"),
        ({"deadline": [1]}, "deadline: must be a time (got [1]); example: "),
    ],
)
def test_a_wrong_field_is_named_by_its_path_with_the_remedy(fields, expected):
    assert expected in refusal(**fields)


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
def test_a_number_that_is_not_finite_is_refused(tmp_path, toml, field, number):
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


def test_every_part_of_a_spec_refuses_numbers_that_are_not_finite():
    assert {model.__name__ for _, model, _ in FIELDS} >= {"RunSpec", "PolicySpec", "PoolSpec", "SpotPool"}
    assert [path for path, model, _ in FIELDS if model.model_config.get("allow_inf_nan") is not False] == []


def test_every_field_is_in_the_docs_with_its_default_and_meaning():
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    described = {line.split("`")[1]: line for line in rows}
    assert len(described) == len(rows), "a field is described twice"
    tables = {path.rpartition(".")[0] for path, _, _ in FIELDS}
    in_both = ("pools.spot", "data.files", "data.reading")  # Tables within tables also have rows.
    fields = {path: field for path, _, field in FIELDS if path not in tables or path in in_both}
    assert set(described) == set(fields)
    for path, field in fields.items():
        assert field.description, path
        if not field.is_required() and field.default_factory is None and path not in in_both:
            shown = "none" if field.default is None else f"`{json.dumps(field.default)}`"
            assert f"| {shown} |" in described[path], path


def test_the_docs_name_every_policy():
    line = next(line for line in DOCS.read_text().splitlines() if line.startswith("| `policy.name`"))
    assert [name for name in POLICIES if not re.search(rf"\b{name}\b", line)] == []


def test_all_wrong_fields_are_reported_at_once():
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({"steps": "many", "checkpoints": {"kep": 1}}, source="run.toml")
    assert len(caught.value.problems) == 4
    message = str(caught.value)
    assert message.startswith("run.toml is not valid: ")
    assert "run_id: required field is missing" in message
    assert "recipe: give either a recipe, as package.module:function, or a program" in message
    assert "\n" not in message


FILES = {"files": [{"path": "/lake/may.csv", "sha256": "0" * 64, "size_bytes": 1}]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"program": {"command": ["bash", "train.sh"]}}, "program.command: must begin with python"),
        ({"program": {"command": ["python"]}}, "program.command: "),
        ({"program": {"command": ["python", "-c", "pass"]}}, "must name a script or -m module after python"),
        ({"program": {"command": ["python", "t.py"]}, "recipe": "a.b:c"}, "recipe: give either a recipe"),
        (
            {"program": {"command": ["python", "t.py"]}, "anomalies": {"spikes": "skip"}},
            "anomalies: a batch of a program",
        ),
        (
            {"program": {"command": ["python", "t.py"]}, "config": {"lr": float("nan")}},
            "config.lr: must be a JSON value",
        ),
        (
            {"program": {"command": ["python", "t.py"]}, "config": {"since": date(2026, 5, 1)}},
            "config.since: must be a JSON value (got datetime.date(2026, 5, 1)); use a string",
        ),
    ],
)
def test_a_program_is_a_python_command_and_takes_the_place_of_a_recipe(fields, sentence):
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({"run_id": "nightly", "steps": 3} | fields)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"recipe": "a:b", "config": {"data": 1}},
            "data: these files are passed as config.data; remove data from [config]",
        ),
        (
            {"program": {"command": ["python", "t.py"]}, "config": {"data": 1}},
            "data: these files are passed as config.data",
        ),
        (
            {"recipe": "a:b", "data": FILES | {"columns": {"a": "text"}}, "config": {"reading": 1}},
            "passed as config.reading",
        ),
        ({"recipe": "a:b", "data": {"files": []}}, "data.files: "),
        (
            {"recipe": "a:b", "data": {"files": [{"path": "a", "sha256": "0", "size_bytes": 1}]}},
            "data.files.0.sha256: ",
        ),
    ],
)
def test_data_that_reaches_no_recipe_or_program_is_refused(fields, sentence):
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({"run_id": "nightly", "steps": 3, "data": FILES} | fields)
    assert sentence in str(caught.value)
    assert "0" * 64 not in str(caught.value)  # Not the whole list of files.


def test_what_a_program_is_given_is_a_part_of_its_identity():
    fields = {"run_id": "n", "steps": 3, "program": {"command": ["python", "t.py"]}, "data": FILES}
    identity = RunSpec.parse(fields | {"config": {"lr": 0.1}}).identity()
    assert (identity["config.lr"], identity["data./lake/may.csv"]) == ("0.1", "0" * 64)


def test_a_spec_says_what_it_trains():
    program = RunSpec.parse(
        {"run_id": "n", "steps": 3, "program": {"command": ["python3.11", "t.py", "--name", "a b"]}}
    )
    assert program.workload == "python3.11 t.py --name 'a b'"
    assert program.identity()["program"] == program.workload
    with pytest.raises(SpecError, match="this command needs a recipe"):
        _ = program.recipe_path


def test_data_that_is_no_table_is_refused():
    with pytest.raises(SpecError, match=r"the document: must be a table \(got \[\]\); its fields are"):
        RunSpec.parse([])


def test_a_store_alone_is_checked_the_same_way():
    with pytest.raises(SpecError, match=r"endpoint_url: must be a URL \(got 'x'\)"):
        StoreSpec.parse({"endpoint_url": "x"}, source=COMMAND_LINE)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read (No such file or directory). Fix: check the path"),
        (b"steps = ", "is not TOML (Invalid value (at end of document)). Fix: correct that line"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path, content, expected):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        RunSpec.from_toml(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(SpecError, match=r"cannot be read \(Is a directory\)\. Fix: check the path"):
        read_toml(tmp_path)


@pytest.mark.parametrize(("seconds", "passes"), [(-1, False), (0, False), (1, True)])
def test_a_deadline_must_be_in_the_future(seconds, passes):
    spec = RunSpec.parse(LEAST | {"deadline": NOW + timedelta(seconds=seconds)})
    if passes:
        spec.require_future_deadline(NOW)
        return
    with pytest.raises(
        DeadlinePassedError, match=r"has passed \(it is .*\)\. Fix: give a later deadline, or no deadline"
    ):
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
def test_a_change_in_what_is_trained_changes_the_identity(fields):
    before = RunSpec.parse(LEAST | {"config": {"width": 4, "deep": {"a": 1}}})
    assert RunSpec.parse(before.model_dump() | fields).identity() != before.identity()


def test_deadline_store_threads_and_policy_are_not_part_of_the_identity():
    before = RunSpec.parse(LEAST)
    other = {"deadline": NOW, "store": {"url": "elsewhere"}, "threads": 2, "policy": {"name": "spot_only"}}
    assert RunSpec.parse(LEAST | other).identity() == before.identity()


def test_the_order_of_the_config_is_not_part_of_the_identity():
    one = RunSpec.parse(LEAST | {"config": {"a": {"x": 1, "y": 2}, "b": 2}})
    other = RunSpec.parse(LEAST | {"config": {"b": 2, "a": {"y": 2, "x": 1}}})
    assert one.identity() == other.identity()


def test_a_save_interval_in_steps_replaces_the_default_one():
    usual, by_steps = RunSpec.parse(LEAST), RunSpec.parse(LEAST | {"checkpoints": {"every_steps": 5}})
    assert (usual.checkpoints.longest_seconds, by_steps.checkpoints.longest_seconds) == (600.0, None)


def test_the_default_store_is_a_folder_below_the_current_one():
    assert not Path(RunSpec.parse(LEAST).store.url).is_absolute()
