"""The XML that Google Cloud Storage answers with."""

from __future__ import annotations

import time
from xml.sax.saxutils import escape

from tests.support.clouds.gcs.buckets import Object, Page

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
"""Of Google, too."""


def error(code: str, *, quoting: str) -> bytes:
    """What is wrong. Like the real one, it quotes the request."""
    return _document("Error", _tag("Code", code) + _tag("Message", code) + _tag("Details", quoting))


def listing(bucket: str, page: Page) -> bytes:
    contents = "".join(
        f"<Contents>{_tag('Key', key)}{_tag('Size', len(item.data))}{_tag('ETag', item.etag)}"
        f"{_tag('LastModified', _moment(item.changed_at))}</Contents>"
        for key, item in page.objects
    )
    prefixes = "".join(f"<CommonPrefixes>{_tag('Prefix', prefix)}</CommonPrefixes>" for prefix in page.prefixes)
    more = "" if page.next is None else _tag("NextContinuationToken", page.next)
    return _document("ListBucketResult", _tag("Name", bucket) + contents + prefixes + more)


def uploads(found: list[tuple[str, str]], *, is_truncated: bool) -> bytes:
    body = "".join(f"<Upload>{_tag('Key', key)}{_tag('UploadId', number)}</Upload>" for key, number in found)
    if is_truncated:
        body += _tag("NextKeyMarker", found[-1][0]) + _tag("NextUploadIdMarker", found[-1][1])
    return _document("ListMultipartUploadsResult", body + _tag("IsTruncated", str(is_truncated).lower()))


def begun(bucket: str, key: str, upload_id: str) -> bytes:
    inner = _tag("Bucket", bucket) + _tag("Key", key) + _tag("UploadId", upload_id)
    return _document("InitiateMultipartUploadResult", inner)


def completed(whole: Object) -> bytes:
    return _document("CompleteMultipartUploadResult", _tag("ETag", whole.etag))


def _tag(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value))}</{name}>"


def _document(name: str, inner: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{_NAMESPACE}'>{inner}</{name}>".encode()


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
