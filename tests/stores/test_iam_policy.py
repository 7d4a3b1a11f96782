"""The packaged IAM policy, on a server that enforces it: segue works below the prefix, and nothing more is allowed."""

from __future__ import annotations

import copy
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.exceptions import ClientError

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import SegueError
from segue.records import ParentRecord, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.parents import read_parent, remove_parent, write_parent
from segue.spec import RunSpec, StoreSpec
from segue.stores import Store, open_store
from tests.stores.conftest import ACCESS_KEY, SECRET_KEY, bucket_at

pytestmark = [pytest.mark.radosgw, pytest.mark.matrix]

USER, USER_SECRET = "trainer", "the-trainers-secret"
PREFIX = "teams/vision"
TEMPLATE = json.loads((files("segue.deployments") / "templates" / "iam-policy.json").read_text())
ACTIONS = sorted({action for statement in TEMPLATE["Statement"] for action in statement["Action"]})
OF_ANOTHER = "another-run/log/00000000.json"
"""An object below the prefix that somebody else wrote: the gateway lets each user read its own."""
PART_BYTES = 5 * 2**20


class Place(NamedTuple):
    """A bucket of somebody else's, and what sets the policy of the user in it."""

    bucket: str
    url: str
    permit: Callable[[dict[str, Any]], None]

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(url=f"s3://{self.bucket}/{PREFIX}", endpoint_url=self.url)


@pytest.fixture(scope="module")
def user(radosgw_config: Path, radosgw_url: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A user of the gateway without any right of its own; called with a policy, it gets that one alone."""

    def admin(*words: str) -> None:
        subprocess.run(["radosgw-admin", "-c", radosgw_config, *words], check=True, capture_output=True, timeout=60)

    admin("user", "create", f"--uid={USER}", "--display-name=x", f"--access-key={USER}", f"--secret={USER_SECRET}")
    admin("caps", "add", "--uid=lab", "--caps=user-policy=*")
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    iam = boto3.client("iam", endpoint_url=radosgw_url, region_name="us-east-1", **keys)
    yield lambda policy: iam.put_user_policy(UserName=USER, PolicyName="segue", PolicyDocument=json.dumps(policy))
    iam.close()


@pytest.fixture
def place(user: Callable[[dict[str, Any]], None], radosgw_url: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A bucket with an object outside of the prefix; this process and its children have the user's keys from now on."""
    bucket = bucket_at(radosgw_url).removeprefix("s3://")
    owner = boto3.client("s3", endpoint_url=radosgw_url)
    for key in ("other/secret.txt", "teams/vision-2/secret.txt", "secret.txt"):
        owner.put_object(Bucket=bucket, Key=key, Body=b"not for the trainer")
    owner.put_object(Bucket=bucket, Key=f"{PREFIX}/{OF_ANOTHER}", Body=b"{}")
    owner.close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", USER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", USER_SECRET)
    found = Place(bucket, radosgw_url, user)
    user(policy_for(bucket))
    return found


def policy_for(bucket: str, *, without: str | None = None) -> dict[str, Any]:
    """The template for a bucket, without one of its actions."""
    text = json.dumps(TEMPLATE).replace("BUCKET", bucket).replace("PREFIX", PREFIX)
    policy: dict[str, Any] = copy.deepcopy(json.loads(text))
    for statement in policy["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action != without]
    policy["Statement"] = [statement for statement in policy["Statement"] if statement["Action"]]
    return policy


def use(store: Store) -> None:
    """Everything that segue asks of a store."""
    run = uuid.uuid4().hex
    store.check()
    store.put_if_absent(f"{run}/log/00000000.json", b"{}")
    store.put(f"{run}/attempts/a/rank-0.safetensors", b"\0" * (40 * 2**20))
    assert store.get(OF_ANOTHER) == b"{}"
    assert store.size(f"{run}/attempts/a/rank-0.safetensors") == 40 * 2**20
    assert store.get_range(f"{run}/log/00000000.json", 0, 1) == b"{"
    assert [item.key for item in store.list_objects(f"{run}/log/")] == [f"{run}/log/00000000.json"]
    assert run in store.folders()
    _leave_unfinished(store, f"{run}/attempts/a/rank-1.safetensors")
    store.drop_unfinished(f"{run}/attempts/")
    store.delete([f"{run}/attempts/a/rank-0.safetensors"])
    record = ParentRecord(run_id=run, timeout_seconds=1.0, beat_at=SystemClock().now())
    write_parent(store, record)
    assert read_parent(store, run) is not None
    remove_parent(store, record)
    rehearsed = ".segue-doctor-0123/rehearsal/log/00000000.json"
    store.put_if_absent(rehearsed, b"{}")
    store.delete([rehearsed])


def _leave_unfinished(store: Any, key: str) -> None:
    client = boto3.Session().client("s3", endpoint_url=store._endpoint_url)
    where = {"Bucket": store.bucket, "Key": f"{store.prefix}/{key}"}
    upload = client.create_multipart_upload(**where)["UploadId"]
    client.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"\0" * PART_BYTES)
    client.close()


def test_with_the_policy_segue_can_do_everything_below_the_prefix(place: Place) -> None:
    use(open_store(place.spec))


@pytest.mark.parametrize("action", ACTIONS)
def test_without_any_one_of_its_actions_something_fails(place: Place, action: str) -> None:
    place.permit(policy_for(place.bucket, without=action))
    with pytest.raises((SegueError, ClientError)):
        use(open_store(place.spec))


@pytest.mark.soak
def test_a_whole_run_commits_resumes_prunes_and_ends_with_the_policy(place: Place) -> None:
    spec = RunSpec.parse(
        {
            "run_id": "least",
            "recipe": "segue.testing.recipes:tiny",
            "steps": 60,
            "store": place.spec.model_dump(),
            "checkpoints": {"every_steps": 10, "keep": 2},
            "segment": {"steps": 40},
        }
    )
    runlog = open_run(spec, clock=SystemClock())
    assert run_here(spec, runlog).action == "finished"
    history = read_history(runlog.reload())
    assert [entry.verdict.kind for entry in history.resumes] == [VerdictKind.EXACT]
    pruned = [c for c in history.checkpoints if c.is_pruned]
    assert pruned
    there = {item.key for item in runlog.store.list_objects("least/attempts/")}
    assert not any(f"least/{shard.key}" in there for c in pruned for shard in c.manifest.shards)


def test_nothing_outside_of_the_prefix_can_be_listed_read_written_or_deleted(place: Place) -> None:
    client = boto3.Session().client("s3", endpoint_url=place.url)
    asks: list[Callable[[], object]] = []
    for key in ("other/secret.txt", "teams/vision-2/secret.txt", "secret.txt", "teams/vision"):
        where = {"Bucket": place.bucket, "Key": key}
        asks += [
            lambda where=where: client.get_object(**where),
            lambda where=where: client.head_object(**where),
            lambda where=where: client.put_object(**where, Body=b"x"),
            lambda where=where: client.delete_object(**where),
            lambda where=where: client.create_multipart_upload(**where),
        ]
    for prefix in ("", "other/", "teams/", "teams/vision", "teams/vision-2/"):
        asks.append(lambda prefix=prefix: client.list_objects_v2(Bucket=place.bucket, Prefix=prefix))
    asks += [
        lambda: client.list_objects_v2(Bucket=place.bucket),
        lambda: client.get_bucket_policy(Bucket=place.bucket),
        lambda: client.put_bucket_policy(Bucket=place.bucket, Policy=json.dumps(policy_for(place.bucket))),
        lambda: client.put_bucket_versioning(Bucket=place.bucket, VersioningConfiguration={"Status": "Suspended"}),
        lambda: client.delete_bucket(Bucket=place.bucket),
    ]
    for number, ask in enumerate(asks):
        with pytest.raises(ClientError) as caught:
            ask()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, (number, caught.value)
    client.close()


def test_the_log_and_the_curve_cannot_be_deleted_with_the_policy(place: Place) -> None:
    store = open_store(place.spec)
    for key in ("run/log/00000000.json", "run/log-packs/x/00000000.pack", "run/metrics/a-p0000.parquet"):
        store.put(key, b"{}")
        with pytest.raises(SegueError, match="access denied"):
            store.delete([key])
        assert store.get(key) == b"{}"


def test_a_user_without_a_policy_is_said_to_have_no_access(place: Place) -> None:
    place.permit(policy_for("another-bucket"))
    with pytest.raises(SegueError, match="the credentials give no access to the bucket"):
        open_store(place.spec).check()
