"""Credentials by their form: refused in every text of a run spec, hidden in every text that is shown; words stay."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from segue.controller.costs.prices import CommandFailedError, output_of, read_prices
from segue.credentials import HIDDEN, redacted, secrets_in
from segue.errors import PriceSourceError, SpecError
from segue.launch.slurm.commands import ask
from segue.retraining.spec import RetrainSpec
from segue.spec import RunSpec

ROOT = Path(__file__).parents[2]
FOLDERS = ("segue", "tasks", "flows", "deployments")
PLANTED = "PLANTEDa1B2c3D4e5F6"
"""In every text below, and nowhere in what is shown of it."""
_LONG = PLANTED * 3
CREDENTIALS = {
    "a URL with a password": f"see postgres://me:{PLANTED}@db.example/x",
    "a URL with a password and no user": f"redis://:{PLANTED}@cache:6379/0",
    "a URL with a token as its user": f"git clone https://{PLANTED}@github.com/a/b",
    "a password with an @ in it": f"postgres://me:{PLANTED}@1@db.example/x",
    "AWS, version 4": f"https://b.s3.amazonaws.com/k?X-Amz-Credential=x&X-Amz-Signature={PLANTED}",
    "AWS, version 2, CloudFront": f"https://b.s3.amazonaws.com/k?AWSAccessKeyId=X&Expires=1&Signature={PLANTED}%3D",
    "AWS, session token": f"https://b.s3.amazonaws.com/k?X-Amz-Security-Token={PLANTED}",
    "Google, version 4": f"https://storage.googleapis.com/b/k?X-Goog-Algorithm=G&X-Goog-Signature={PLANTED}",
    "Azure, shared access": f"https://a.blob.core.windows.net/c/k?sv=2021&sp=r&sig={PLANTED}%3D",
    "Azure, connection string": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={_LONG}==;Suffix=x",
    "an API key in a query": f"curl https://prices.example/v1?region=eu&key={PLANTED}",
    "a token in a query": f"https://prices.example/v1?access_token={PLANTED}",
    "a token in a fragment": f"https://app.example/#access_token={PLANTED}",
    "GitHub": f"ghp_{_LONG[:36]}",
    "GitHub, fine-grained": f"github_pat_11{_LONG}",
    "GitLab": f"glpat-{PLANTED}abc",
    "Hugging Face": f"hf_{_LONG[:34]}",
    "OpenAI": f"sk-{_LONG[:40]}",
    "OpenAI, of a project": f"sk-proj-{_LONG}",
    "Anthropic": f"sk-ant-api03-{_LONG}",
    "Slack": f"xoxb-123456789012-{PLANTED}",
    "a Slack hook": f"https://hooks.slack.com/services/T00000000/B00000000/{PLANTED}",
    "a JSON web token": f"eyJhbGciOiJIUzI1NiJ9.eyJ{PLANTED}.{PLANTED}",
    "Google API key": f"AIza{_LONG[:35]}",
    "Google secret of a client": f"GOCSPX-{_LONG[:28]}",
    "Stripe": f"sk_live_{PLANTED}",
    "npm": f"npm_{_LONG[:36]}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{_LONG}",
    "Prefect": f"pnu_{_LONG[:36]}",
    "Weights & Biases": f"WANDB_API_KEY={PLANTED}",
    "Vault": f"hvs.{_LONG[:24]}",
    "a header": f"curl -H 'Authorization: Bearer {PLANTED}' https://prices.example",
    "a header of lower-case letters": f"Authorization: Bearer {PLANTED.lower()}",
    "a header of a service": f"curl -H 'X-Api-Key: {PLANTED}' https://prices.example",
    "basic authentication": f"Authorization: Basic {base64.b64encode(f'me:{PLANTED}'.encode()).decode()}",
    "curl's option": f"curl -u me:{PLANTED} https://prices.example",
    "Hydra": f"db.password={PLANTED}",
    "an assignment": f"env API_KEY={PLANTED} python train.py",
    "an export of Slurm": f"ALL,API_KEY={PLANTED}",
    "an option with =": f"prices --api-key={PLANTED}",
    "an option with a space": f"prices --api-key {PLANTED}",
    "a short password": "login --password PLANTED",
    "a variable of PostgreSQL": f"PGPASSWORD={PLANTED} psql -c x",
    "JSON": f'{{"user": "me", "password": "{PLANTED}"}}',
    "a default of a shell": f"password=${{PW:-{PLANTED}}}",
    "ODBC": f"Server=db;Uid=me;Password={PLANTED};",
}
ORDINARY = [
    "https://example.com/a@b and me@example.com",
    "ssh://git@github.com/a/b.git",
    "abfss://data@account.dfs.core.windows.net/x.parquet",
    "hdfs://hadoop@namenode:9000/x",
    'curl -H "Authorization: Bearer $TOKEN" https://prices.example',
    'curl -u "$USER:$PASS" https://prices.example',
    "postgres://me:$DB_PASSWORD@db.example/x",
    "postgres://me:${DB_PASSWORD}@db.example/x",
    "db.password=${oc.env:DB_PASSWORD}",
    "--password=$(cat /run/secrets/db)",
    "--password-file /run/secrets/db --token-file=/run/secrets/token",
    "--export=ALL,API_KEY",
    "--export=ALL,GOOGLE_APPLICATION_CREDENTIALS=/run/secrets/key.json",
    "https://prices.example/v1?key=instance_type&sort=price",
    "https://prices.example/v1?sig=0.5",
    "docker run -u 1000:1000 image",
    "sk-learn-pipeline-gradient-boosting-regressor",
    "password: see the wiki",
    "pad_token=<|padding|> eos_token=</s> num_tokens=4096000000",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "connect(password=password, api_key=load_key())",
    'token = os.environ["TOKEN"]',
    "self.api_key = api_key",
    "the basic authentication of a token bucket",
    "tokenizer=bert-base-uncased primary_key=customer_number",
    "secret_name=prod/database password_column=password_hash",
]


@pytest.mark.parametrize("text", CREDENTIALS.values(), ids=CREDENTIALS)
def test_a_credential_is_refused_in_every_field_of_a_spec_and_hidden_where_it_is_shown(text):
    fields = {
        "config": {"config": {"anything": text}},
        "config, in a list": {"config": {"anything": ["x", {"more": text}]}},
        "config, as a name": {"config": {"anything": {text: 1}}},
        "prices": {"pools": {"prices": f"cmd: {text}"}},
        "command": {"recipe": None, "program": {"command": ["python", "train.py", text]}},
        "slurm": {"slurm": {"spot": "s", "on_demand": "o", "options": [f"--export={text}"]}},
    }
    for where, given in fields.items():
        with pytest.raises(SpecError) as caught:
            spec_with(given).require_no_secrets()
        assert "PLANTED" not in str(caught.value).upper(), where
    shown = redacted(f"before {text} after")
    assert "PLANTED" not in shown.upper()
    assert shown.startswith("before ")
    assert HIDDEN in shown or "...@" in shown


@pytest.mark.parametrize("text", ORDINARY)
def test_what_only_resembles_a_credential_is_accepted_and_stays_readable(text):
    assert secrets_in({"config": {"anything": text}, "command": ["python", text]}) == ()
    assert redacted(text) == text or "://" in text


@pytest.mark.parametrize(
    "config",
    [
        {"password": "hunter2"},
        {"password": 12345678},
        {"passwords": ["hunter2hunter2"]},
        {"api": {"key": PLANTED}},
        {"accessTokens": [PLANTED]},
        {"pgpassword": PLANTED},
        {"db_pass": PLANTED},
    ],
)
def test_a_value_under_the_name_of_a_secret_is_refused(config):
    with pytest.raises(SpecError) as caught:
        spec_with({"config": config}).require_no_secrets()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"password": "${oc.env:DB_PASSWORD}"},
        {"password_length": 12, "token_count": 100_000_000, "password_column": "password_hash"},
        {"credentials": "/run/secrets/key.json", "secret_name": "prod/database"},
        {"hf_token": "$HF_TOKEN", "api_key": "<your key here>", "password": None},
    ],
)
def test_a_reference_to_a_secret_or_a_fact_about_it_is_accepted(config):
    spec_with({"config": config}).require_no_secrets()


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"pools": {"prices": f"cmd: curl https://me:{PLANTED}@p/"}}, "write $NAME in the command"),
        (
            {"slurm": {"spot": "s", "on_demand": "o", "options": [f"--export=ALL,API_KEY={PLANTED}"]}},
            "--export=ALL,NAME",
        ),
        ({"config": {"db": f"postgres://me:{PLANTED}@p/"}}, "read it in the training code"),
    ],
)
def test_the_remedy_is_one_of_that_field(fields, fix):
    with pytest.raises(SpecError) as caught:
        spec_with(fields).require_no_secrets()
    assert fix in str(caught.value)


def test_a_retraining_with_a_signed_url_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "retrain.toml"
    path.write_text(f"""
name = "flights"
[data]
files = "https://b.s3.amazonaws.com/x.parquet?X-Amz-Signature={PLANTED}"
window = "growing"
[run]
recipe = "a.b:c"
steps = 10
""")
    with pytest.raises(SpecError, match=r"data\.files: holds credentials") as caught:
        RetrainSpec.from_toml(path)
    assert PLANTED not in str(caught.value)


def test_what_a_failing_command_says_is_hidden_before_it_is_cut(monkeypatch):
    monkeypatch.setenv("PRICES_API_KEY", PLANTED)
    # The cut of what is quoted goes through the secret: a half of it would not be recognized.
    for filler in range(150, 210, 7):
        said = f"401 for {PLANTED} {'x' * filler}"
        with pytest.raises(CommandFailedError) as caught:
            output_of(f"echo '{said}' >&2; exit 1", timeout_seconds=20.0, most_bytes=100)
        assert not any(PLANTED[at : at + 6] in caught.value.why for at in range(len(PLANTED) - 6))


@pytest.mark.parametrize(
    "answer", ["{0}", '{{"key": "{0}"}}', "[a", '{{"segment/spot": "{0}", "segment/on-demand": 1}}']
)
def test_an_answer_that_cannot_be_used_is_quoted_without_its_secret(monkeypatch, answer):
    monkeypatch.setenv("PRICES_API_KEY", PLANTED)
    spec = spec_with({"pools": {"prices": f"cmd: echo '{answer.format('$PRICES_API_KEY')}'".replace("'", '"', 0)}})
    pools = spec.pools.model_copy(update={"prices": spec.pools.prices.replace("'", "")})
    with pytest.raises(PriceSourceError) as caught:
        read_prices(pools)
    assert PLANTED not in str(caught.value)


def test_what_slurm_says_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", PLANTED)
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "sbatch: error: refused $API_KEY" >&2\nexit 1\n')
    (tmp_path / "sbatch").chmod(0o755)
    answer = ask([str(tmp_path / "sbatch")])
    assert answer.why == f"refused {HIDDEN}"


def test_every_file_that_reads_the_output_of_a_process_redacts_it():
    """Or is listed here, with the reason."""
    reasons = {
        "segue/doctor/races.py": "segue's own process, which prints counts",
        "segue/launch/child.py": "a pipe; `Relay` redacts its lines",
        "segue/launch/local.py": "the number of accelerators",
        "segue/trainer/process/machine_check.py": "the numbers that the driver gives for each accelerator",
        "deployments/workers/warm_worker.py": "its pipe leads to the process",
        "deployments/local_stack/services.py": "segue's own supervisor",
        "deployments/local_stack/stack.py": "segue's own supervisor",
        "segue/doctor/scratch.py": "starts the processes of the checks; each redacts what it reads",
    }
    reads = re.compile(r"\bPIPE\b|\bcapture_output\b|\bcheck_output\b|\bgetoutput\b|\bstderr=errors\b")
    texts = {path: path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    found = {
        path.relative_to(ROOT).as_posix(): "redacted" in text for path, text in texts.items() if reads.search(text)
    }
    assert len(found) > 6
    assert {path for path, is_redacted in found.items() if not is_redacted} <= set(reasons)


def spec_with(fields):
    common = {"run_id": "r", "recipe": "a.b:c", "steps": 10}
    return RunSpec.parse({name: value for name, value in (common | fields).items() if value is not None})
