"""What goes wrong between segue and Azure Blob Storage: credentials, containers, accounts, blocks left behind."""

from __future__ import annotations

import random
import subprocess
import sys
import uuid
from datetime import UTC, datetime

import pytest
from azure.storage.blob import generate_container_sas

from segue.errors import StoreUnreachableError
from segue.spec import StoreSpec
from segue.stores import Store, StoreReadError, StoreWriteError, open_store
from segue.stores.azure import AzureStore
from tests.stores.conftest import BUCKET
from tests.support.clouds import azurite

HALF = "0" * 32
"""Id of a block, as long as obstore's: Azure takes only ids of one length for one blob."""
OTHER_KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="


@pytest.fixture
def place(azurite_url: str) -> StoreSpec:
    azurite.create_container(azurite_url, BUCKET)
    return StoreSpec(url=f"az://{BUCKET}/{uuid.uuid4().hex}", endpoint_url=azurite_url)


@pytest.fixture
def store(place: StoreSpec) -> Store:
    return open_store(place)


def refusal(spec: StoreSpec) -> StoreUnreachableError:
    """The error of opening and checking a store; it contains no key."""
    with pytest.raises(StoreUnreachableError) as raised:
        open_store(spec).check()
    assert raised.value.fix in str(raised.value)
    assert not any(key in str(raised.value) for key in (azurite.KEY, OTHER_KEY))
    return raised.value


@pytest.mark.matrix
def test_a_container_that_is_not_there_is_reported_as_missing(azurite_url: str) -> None:
    spec = StoreSpec(url="az://no-such-container/runs", endpoint_url=azurite_url)
    assert "there is no container 'no-such-container'. Fix: create the container" in str(refusal(spec))
    store = open_store(spec)
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreWriteError, match="no such container"):
            write("a", b"x")
    for read in (store.folders, lambda: store.list_objects("run/")):
        with pytest.raises(StoreReadError, match="404 Not Found"):
            read()


def test_a_wrong_key_is_told_so_and_no_answer_of_the_server_is_quoted(
    place: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", OTHER_KEY)
    assert "the credentials give no access to the container. Fix: check the credentials" in str(refusal(place))
    store = open_store(place)
    for read in (lambda: store.get("a"), lambda: store.size("a"), store.folders, lambda: store.list_objects("")):
        with pytest.raises(StoreReadError) as raised:
            read()
        assert "AuthorizationFailure" not in str(raised.value)


def test_a_key_that_is_none_is_told_so_without_it(place: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not a key at all")
    error = refusal(place)
    assert "a setting for Azure in the environment is wrong. Fix: check AZURE_" in str(error)
    assert "not a key" not in str(error)


def test_missing_credentials_are_reported_as_missing(place: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    assert "no credentials for Azure, and the machine has no managed identity. Fix: set AZURE_STORAGE_ACCOUNT_KEY" in (
        str(refusal(place))
    )


@pytest.mark.parametrize("has_key", [True, False])
def test_an_endpoint_without_a_server_is_reported_with_its_address(
    place: StoreSpec, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    if not has_key:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    closed = place.model_copy(update={"endpoint_url": "http://127.0.0.1:9/account"})
    assert "the endpoint (http://127.0.0.1:9/account) and the network" in str(refusal(closed))


def test_with_a_signed_token_everything_works_that_it_permits_and_it_is_in_no_error(
    place: StoreSpec, azurite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def permit(rights: str) -> str:
        until = datetime(2100, 1, 1, tzinfo=UTC)
        token = generate_container_sas(
            azurite.ACCOUNT, BUCKET, account_key=azurite.KEY, permission=rights, expiry=until
        )
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
        return token.rpartition("sig=")[2]

    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    permit("rwdl")
    able = open_store(place)
    able.check()
    able.put("run/a", b"x" * (17 << 20))
    able.delete(["run/a"])
    able.drop_unfinished("run/")
    able.put("a", b"x")
    assert (able.size("a"), able.folders()) == (1, [])
    signature = permit("rl")
    store = open_store(place)
    assert (store.get("a"), store.list_objects("")) == (b"x", [("a", 1)])
    for write in (lambda: store.put("b", b"x"), lambda: store.delete(["a"])):
        with pytest.raises(StoreWriteError) as raised:
            write()
        assert signature not in str(raised.value)
    away = open_store(place.model_copy(update={"endpoint_url": "http://127.0.0.1:9/devstoreaccount1"}))
    with pytest.raises(StoreUnreachableError) as refused:
        away.check()
    assert signature not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint_url", "given", "account"),
    [
        ("https://lake.blob.core.windows.net", None, "lake"),
        ("https://lake.blob.core.windows.net", "other", "other"),
        ("https://lake.privatelink.blob.core.windows.net", None, "lake"),
        ("https://lake.z6.blob.storage.azure.net", None, "lake"),
        ("https://lake-secondary.blob.core.windows.net", None, "lake"),
        ("http://127.0.0.1:10000/devstoreaccount1", None, "devstoreaccount1"),
        (None, "other", "other"),
    ],
)
def test_the_account_is_that_of_the_environment_or_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, given: str | None, account: str
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    if given is not None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", given)
    store = AzureStore(container="models", endpoint_url=endpoint_url)
    assert store._opened({}).config["account_name"] == account


@pytest.mark.parametrize(
    ("url", "endpoint_url", "region", "why"),
    [
        ("az://models/runs", None, None, "no storage account is named. Fix: set AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://models/runs", "https://blobs.example", None, "no storage account is named"),
        ("az://", None, None, "has no container"),
        ("az://models/runs?snapshot=1", None, None, "has a '?' or '#'"),
        ("az://models/runs//other", "http://127.0.0.1:9/x", None, "cannot be a prefix"),
        ("az://models/runs", None, "westeurope", "not for az://"),
        ("az://models/runs", "http://azurite:10000/x", None, "others could read the credentials"),
        ("az://models/runs", "127.0.0.1:10000/x", None, "is not a URL"),
        ("az://models@account.dfs.core.windows.net/runs", None, None, "may not contain credentials"),
        ("abfs://models/runs", None, None, "abfs:// is not a supported kind of store. Fix: give a folder"),
    ],
)
def test_a_store_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, endpoint_url: str | None, region: str | None, why: str
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreUnreachableError, match="Fix: ") as raised:
        open_store(StoreSpec.model_construct(url=url, endpoint_url=endpoint_url, region=region, signing_key=None))
    assert why in str(raised.value)


def test_blocks_of_a_dead_writer_are_not_seen_and_do_not_stop_the_next(store: Store, place: StoreSpec) -> None:
    key = f"{place.url.removeprefix(f'az://{BUCKET}/')}/run/shard"
    with azurite.container(place.endpoint_url, BUCKET) as client:
        blob = client.get_blob_client(key)
        blob.stage_block(HALF, b"half")
        assert (store.list_objects(""), store.folders()) == ([], [])
        store.drop_unfinished("run/")
        assert [block.id for block in blob.get_block_list("uncommitted")[1]] == [HALF]
        store.put("run/shard", b"x" * (40 << 20))
        assert store.get("run/shard") == b"x" * (40 << 20)
        assert blob.get_block_list("uncommitted")[1] == []


def test_no_request_draws_from_the_random_streams_of_the_recipe(store: Store) -> None:
    before = random.getstate()
    store.check()
    store.put("a", b"x" * (40 << 20))
    store.delete(["a"])
    store.folders()
    assert random.getstate() == before


def test_without_the_extra_the_message_shows_how_to_install_it() -> None:
    code = "import sys; sys.modules['obstore'] = None; from segue.stores import open_store; open_store('az://a/b')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "MissingExtraError: a store on az:// needs the extra 'azure'. Fix: pip install 'segue[azure]'" in ended.stderr
    )
