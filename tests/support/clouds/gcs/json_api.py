"""Reading through the JSON API of Google Cloud Storage, which gcsfs speaks: facts of an object, and listings."""

from __future__ import annotations

import json
import time
from urllib.parse import unquote

from tests.support.clouds.gcs.buckets import Buckets, Object

METADATA, MEDIA = "/storage/v1/b/", "/download/storage/v1/b/"


def is_for(path: str) -> bool:
    return path.startswith((METADATA, MEDIA))


def names(path: str) -> tuple[str, str]:
    """The bucket and the object that a path of this API names; the object is empty for a listing."""
    bucket, _, key = path.partition("/b/")[2].partition("/o")
    return unquote(bucket), unquote(key.removeprefix("/"))


def facts(bucket: str, key: str, found: Object) -> bytes:
    return json.dumps(_facts(bucket, key, found)).encode()


def listing(buckets: Buckets, bucket: str, query: dict[str, str], *, most: int) -> bytes:
    page = buckets.list(
        bucket,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        after=query.get("pageToken", ""),
        most=min(int(query.get("maxResults", most)), most),
    )
    answer = {
        "kind": "storage#objects",
        "items": [_facts(bucket, key, item) for key, item in page.objects],
        "prefixes": page.prefixes,
    }
    return json.dumps(answer if page.next is None else answer | {"nextPageToken": page.next}).encode()


def error(status: int, code: str) -> bytes:
    return json.dumps({"error": {"code": status, "message": code}}).encode()


def _facts(bucket: str, key: str, found: Object) -> dict[str, str]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.changed_at))
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": key,
        "size": str(len(found.data)),
        "generation": str(found.generation),
        "etag": found.etag,
        "contentType": "application/octet-stream",
        "timeCreated": moment,
        "updated": moment,
    }
