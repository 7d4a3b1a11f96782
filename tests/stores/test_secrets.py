"""Credentials stay in memory: they are in no object of the store and in nothing that is printed."""

from __future__ import annotations

import os

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.spec import RunSpec, StoreSpec
from segue.stores import open_store
from segue.stores.base import StoreReadError, StoreWriteError
from tests.stores.conftest import bucket_at, place_at
from tests.support.clouds import azurite

SECRET = "wJalrXUtnFEMI-a-made-up-secret-key"
TOKEN = "FwoGZXIvYXdzE-a-made-up-session-token"


@pytest.fixture
def aws_secrets(moto_url, monkeypatch):
    bucket_at(moto_url)  # Made before the keys are others.
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


@pytest.fixture
def place(request, server):
    return place_at(request, server, prefix=f"quiet-{server}")


@pytest.fixture
def secrets(request, server, place):
    """What must be nowhere: the credentials that this server is used with."""
    if server == "gcs":
        tokens = request.getfixturevalue("gcs").tokens
        return lambda: (
            [line for line in tokens.key()["private_key"].splitlines() if "KEY" not in line] + tokens.issued()
        )
    if server == "azurite":
        return lambda: [azurite.KEY]
    request.getfixturevalue("aws_secrets")
    return lambda: [SECRET, TOKEN]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "server", ["moto", *(pytest.param(server, marks=pytest.mark.soak) for server in ("gcs", "azurite"))]
)
def test_a_run_leaves_no_credential_in_the_store_or_in_its_output(place, secrets, tmp_path):
    spec = RunSpec.parse(
        {
            "run_id": "quiet",
            "recipe": "segue.testing.recipes:tiny",
            "steps": 30,
            "store": place.model_dump(),
            "checkpoints": {"every_steps": 10, "fast_folder": str(tmp_path / "fast")},
            "config": {"raise_at_step": 25},
            "policy": {"max_failures": 1},
        }
    )
    lines: list[str] = []
    runlog = open_run(spec, clock=SystemClock())
    run_here(spec, runlog, on_line=lambda line: lines.append(line.text))
    assert any("checkpoint committed" in line for line in lines)
    store = open_store(spec.store)
    written = [store.get(item.key) for item in store.list_objects("quiet/")]
    written += [path.read_bytes() for path in (tmp_path / "fast").rglob("*") if path.is_file()]
    assert len(written) > 8
    hidden = secrets()
    assert hidden
    for secret in hidden:
        assert not any(secret.encode() in data for data in written)
        assert not any(secret in line for line in lines)


@pytest.mark.matrix
def test_errors_of_a_store_carry_no_credential(aws_secrets, moto_url):
    store = open_store(StoreSpec(url="s3://no-such-bucket-here/x", endpoint_url=moto_url))
    for ask in (lambda: store.put("a/b", b"x"), lambda: store.put_if_absent("a/b", b"x")):
        with pytest.raises(StoreWriteError) as caught:
            ask()
        assert not any(secret in str(caught.value) + repr(caught.value) for secret in (SECRET, TOKEN))
    with pytest.raises(StoreReadError) as caught_read:
        store.drop_unfinished("a/")
    assert SECRET not in str(caught_read.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
