"""Secrets and signatures through a real Prefect: nothing of them in its database, its logs or the store."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import StateType

from segue.errors import ForgedRecordError
from segue.runlog import keys
from segue.runlog.framing import framed
from segue.runlog.history import read_history
from tests.flows.test_runs import final_state, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": f"aws/{uuid.uuid4().hex}+x",
    "MLFLOW_TRACKING_TOKEN": f"mlflow-{uuid.uuid4().hex}",
    "OUR_SERVICE_SECRET": f"custom-{uuid.uuid4().hex}",
}
IN_A_URL = f"password-{uuid.uuid4().hex}"
KEY = uuid.uuid4().hex + uuid.uuid4().hex


@pytest.fixture
def planted(monkeypatch):
    """Secrets in the environment of everything that starts from now on."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEAKED_URL", f"postgres://me:{IN_A_URL}@db.example/x")
    monkeypatch.setenv("RUN_SIGNING_KEY", KEY)


@pytest.fixture
def own_stack(planted, own_stack_at):
    """Started after the secrets were planted."""
    yield from own_stack_at()


@pytest.fixture
def client(own_stack):
    with get_client(sync_client=True) as client:
        yield client


def signed(make_spec, tmp_path, **fields):
    return make_spec(store={"url": str(tmp_path / "store"), "signing_key": "env:RUN_SIGNING_KEY"}, **fields)


def contents(folder):
    """Every file below a folder; all of them at one moment, because Prefect's database removes some."""
    while True:
        with suppress(FileNotFoundError):
            return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.soak
def test_a_signed_run_that_shows_its_environment_leaves_no_secret_with_prefect(client, make_spec, tmp_path):
    spec = signed(make_spec, tmp_path, recipe="tests.recipes.leaking:build", policy={"max_failures": 1})
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert state.type is StateType.FAILED
    reports = read_history(runlog.reload()).reports
    assert reports, state.message
    assert "cannot connect" in reports[-1].failure.traceback
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", spec.run_id])))
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id for run in runs]))
    until(lambda: any("a value: (hidden)" in log.message for log in client.read_logs(wanted)), what="its output")
    files = contents(tmp_path)
    assert any(path.name.endswith(".db") for path in files), "Prefect's database is searched"
    leaks = [value[:12].encode() for value in (*PLANTED.values(), KEY)] + [IN_A_URL.encode()]
    found = {(path, leak) for path, data in files.items() for leak in leaks if leak in data}
    assert not found


@pytest.mark.soak
def test_a_record_that_is_forged_while_a_signed_run_trains_ends_it_with_its_name(client, make_spec, tmp_path):
    long = {"steps": 4000, "config": {"pause_seconds": 0.01}, "checkpoints": {"every_steps": 50}}
    spec = signed(make_spec, tmp_path, **long)
    runlog, parent = start(client, spec)
    until(lambda: len(read_history(runlog).checkpoints) > 1, what="two commits")
    forged = framed(
        b'{"kind":"prune","schema_version":1,"entry_id":"x","written_at":"2026-01-01T00:00:00Z","slots":[]}'
    )
    while not runlog.store.put_if_absent(keys.log_key(spec.run_id, runlog.next_slot), forged):
        runlog.refresh()
    state = final_state(client, parent)
    assert state.type is StateType.FAILED
    assert "is forged: the record has no signature" in state.message
    with pytest.raises(ForgedRecordError):
        read_history(runlog)
