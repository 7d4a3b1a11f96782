"""Secrets stay where they are: in no spec, store, output, report or export, even when training code shows them."""

from __future__ import annotations

import hashlib
import json
import uuid

import pandas as pd
import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import check_start, open_run
from segue.credentials import masked, names_secret, redacted
from segue.curves.frame import curve
from segue.errors import SpecError, StoreUnreachableError
from segue.interop.export import ExportFormat, write_export
from segue.records import StopReason
from segue.reports.cost_report import cost_report
from segue.reports.page import RunView, page
from segue.runlog.history import read_history
from segue.spec import DataSpec, StoreSpec
from segue.stores import open_store

HIDDEN_VALUE = "s3cr3t-" + hashlib.sha256(b"a value that is hidden").hexdigest()[:32]
"""The same in every process: tests are named after it."""


SECRET_NAMES = """password db_password dbPassword api_key API-KEY apikey secretKey access_token hf_token token authToken
    credentials AWS_SECRET_ACCESS_KEY private_key passphrase"""
OTHER_NAMES = """pad_token eos_token tokenizer num_tokens tokens_per_step key keys primary_key passes secretary monkey
    width token_type_ids keyboard query_key_dim"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_name_of_a_secret_is_known(name):
    assert names_secret(name)


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_a_name_of_something_else_is_no_secret(name):
    assert not names_secret(name)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"password": HIDDEN_VALUE}, "config.password"),
        ({"db": {"api_key": HIDDEN_VALUE}}, "config.db.api_key"),
        ({"sources": [{"accessToken": HIDDEN_VALUE}]}, "config.sources.0.accessToken"),
        ({"source": f"postgres://me:{HIDDEN_VALUE}@db.example/x"}, "config.source"),
        ({"source": f"https://b.s3.amazonaws.com/x?X-Amz-Signature={HIDDEN_VALUE}"}, "config.source"),
        ({"anything": "AKIA" + "ABCDEFGH12345678"}, "config.anything"),
        ({"anything": "hf_" + "a" * 34}, "config.anything"),
        ({"anything": f"-----BEGIN RSA PRIVATE KEY-----\n{HIDDEN_VALUE}"}, "config.anything"),
    ],
)
def test_a_secret_in_the_config_is_refused_by_its_field_before_anything_is_written(make_spec, tmp_path, config, field):
    with pytest.raises(SpecError) as caught:
        open_run(make_spec(config=config), clock=SystemClock())
    assert field in str(caught.value)
    assert not any(str(value) in str(caught.value) for value in [HIDDEN_VALUE, "AKIAABC", "hf_aaa"])
    assert not (tmp_path / "store").exists()


def test_a_config_without_secrets_is_accepted(make_spec):
    config = {"pad_token": "<|padding|>", "tokens": 4096, "password": "env:DB_PASSWORD", "api_key": "", "token": None}
    config |= {"home": "https://example.com/a@b", "mail": "me@example.com", "key": "a-long-key-of-a-mapping"}
    check_start(make_spec(config=config), clock=SystemClock())


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--password", HIDDEN_VALUE],
        ["python", "train.py", f"--api-key={HIDDEN_VALUE}"],
        ["python", "train.py", f"--db=postgres://me:{HIDDEN_VALUE}@db/x"],
    ],
)
def test_a_secret_in_a_programs_command_is_refused(make_spec, command):
    spec = make_spec(recipe=None, program={"command": command})
    with pytest.raises(SpecError, match=r"program\.command") as caught:
        check_start(spec, clock=SystemClock())
    assert HIDDEN_VALUE not in str(caught.value)


WITH_PASSWORD = f"https://me:{HIDDEN_VALUE}@store.example/runs"


@pytest.mark.parametrize(
    "fields",
    [
        {"store": {"url": f"s3://me:{HIDDEN_VALUE}@bucket/x"}},
        {"store": {"url": f"s3:/me:{HIDDEN_VALUE}@bucket/x"}},
        {"store": {"url": "s3://bucket/x", "endpoint_url": WITH_PASSWORD}},
        {"store": {"url": "s3://bucket/x", "endpoint_url": f"ftp://me:{HIDDEN_VALUE}@x"}},
        {"trackers": {"mlflow": {"tracking_uri": WITH_PASSWORD}}},
        {"data": {"endpoint_url": WITH_PASSWORD, "files": [{"path": "/x", "sha256": "0" * 64, "size_bytes": 1}]}},
        {"store": {"url": "s3://bucket/x", "password": HIDDEN_VALUE}},
    ],
)
def test_a_url_with_a_password_is_refused_without_showing_it(make_spec, fields):
    with pytest.raises(SpecError) as caught:
        make_spec(**fields)
    assert HIDDEN_VALUE not in str(caught.value) + repr(caught.value.problems)


def test_a_data_file_behind_a_password_is_refused(make_spec):
    file = {"path": WITH_PASSWORD, "sha256": "0" * 64, "size_bytes": 1}
    with pytest.raises(SpecError, match=r"data\.files\.0\.path: holds credentials") as caught:
        check_start(make_spec(data={"files": [file]}), clock=SystemClock())
    assert HIDDEN_VALUE not in str(caught.value)


@pytest.mark.parametrize("make", [lambda: StoreSpec(url=WITH_PASSWORD), lambda: DataSpec(endpoint_url=WITH_PASSWORD)])
def test_the_error_of_a_model_does_not_show_it_either(make):
    with pytest.raises(ValueError, match="validation error") as caught:
        make()
    assert HIDDEN_VALUE not in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"s3://me:{HIDDEN_VALUE}@bucket/x", f"s3:/me:{HIDDEN_VALUE}@bucket/x", f"gs://{HIDDEN_VALUE}@bucket"]
)
def test_a_store_that_is_opened_by_such_a_url_does_not_show_it(url):
    with pytest.raises(StoreUnreachableError) as caught:
        open_store(url)
    assert HIDDEN_VALUE not in str(caught.value) + caught.value.url


def test_urls_are_masked_in_text_and_the_rest_of_it_stays():
    text = f"GET {WITH_PASSWORD} failed; me@example.com and https://example.com/a@b stay"
    assert masked(text) == "GET https://...@store.example/runs failed; me@example.com and https://example.com/a@b stay"


@pytest.mark.parametrize("value", [HIDDEN_VALUE, 'with "quotes" and \\ and é', "first line of it\nsecond line of it"])
def test_a_secret_of_the_environment_is_hidden_however_it_is_written(monkeypatch, value):
    from urllib.parse import quote

    monkeypatch.setenv("SERVICE_PASSWORD", value)
    monkeypatch.setenv("HOME_OF_IT", "/home/somebody")
    for form in (value, repr(value), json.dumps(value), quote(value, safe=""), *value.splitlines()):
        shown = redacted(f"before {form} after /home/somebody")
        assert "(hidden)" in shown
        assert not any(line in shown for line in value.splitlines())
        assert shown.startswith("before ")
        assert shown.endswith(" after /home/somebody")


def test_other_variables_stay_readable(monkeypatch):
    monkeypatch.setenv("TABLE_KEY", "customer_id")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token")
    monkeypatch.setenv("MODE", "everything-else")
    text = "joined by customer_id with /var/run/secrets/token in everything-else"
    assert redacted(text) == text


PLANTED = {
    "AWS_SECRET_ACCESS_KEY": f"aws/{uuid.uuid4().hex}+x",
    "AWS_SESSION_TOKEN": f"session/{uuid.uuid4().hex}==",
    "MLFLOW_TRACKING_TOKEN": f"mlflow-{uuid.uuid4().hex}",
    "MLFLOW_TRACKING_PASSWORD": f'quoted"{uuid.uuid4().hex}',
    "HF_TOKEN": "hf_" + uuid.uuid4().hex.translate(str.maketrans("0123456789", "ghijklmnop")),
    "PREFECT_API_KEY": f"pnu_{uuid.uuid4().hex}",
    "OUR_SERVICE_SECRET": f"custom-{uuid.uuid4().hex}",
    "SEGUE_RUN_KEY": f"{uuid.uuid4().hex}{uuid.uuid4().hex}",
}
IN_A_URL = f"password-{uuid.uuid4().hex}"


@pytest.mark.matrix
@pytest.mark.parametrize("is_signed", [False, True])
def test_a_run_whose_code_shows_its_environment_leaves_no_secret_anywhere(make_spec, tmp_path, monkeypatch, is_signed):
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEAKED_URL", f"postgres://me:{IN_A_URL}@db.example/x")
    store = {"url": str(tmp_path / "store")} | ({"signing_key": "env:SEGUE_RUN_KEY"} if is_signed else {})
    fast = {"every_steps": 10, "fast_folder": str(tmp_path / "fast")}
    spec = make_spec(recipe="tests.recipes.leaking:build", store=store, checkpoints=fast, policy={"max_failures": 1})
    lines: list[str] = []
    runlog = open_run(spec, clock=SystemClock())
    decision = run_here(spec, runlog, on_line=lambda line: lines.append(line.text))
    history = read_history(runlog.reload())
    report = history.reports[-1]
    assert report.stop_reason is StopReason.FAILED
    assert any("a value: (hidden)" in line for line in lines), "its output was read"
    assert "cannot connect" in report.failure.traceback
    assert "(hidden)" in report.failure.message
    write_export(runlog, history.newest, file_format=ExportFormat.SAFETENSORS, folder=tmp_path / "export")
    view = RunView(spec, history, cost_report(spec, history), SystemClock().now())
    shown = {
        "lines": "\n".join(lines),
        "decision": repr(decision),
        "log": repr(runlog.slots),
        "curve": _every_cell(curve(spec.run_id, store=spec.store)),
        "page": page(view),
    }
    assert not [where for where, text in shown.items() if _leaks(text.encode())]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if _leaks(path.read_bytes())]


def _leaks(data: bytes) -> bool:
    parts = [part for value in PLANTED.values() for part in (value[:12], value[-12:])] + [IN_A_URL]
    return any(part.encode() in data for part in parts)


def _every_cell(frame: pd.DataFrame) -> str:
    return frame.to_csv() + repr(dict(frame.attrs))
