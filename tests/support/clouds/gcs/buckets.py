"""The objects of a fake Google Cloud Storage, in memory."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from typing import NamedTuple


class Refusal(Exception):
    """An answer other than success: the HTTP status, and the code that GCS puts into the answer's body."""

    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code
        super().__init__(f"{status} {code}")


NO_BUCKET, NO_KEY, NO_UPLOAD = (404, "NoSuchBucket"), (404, "NoSuchKey"), (404, "NoSuchUpload")
CHANGED, NO_RANGE = (412, "PreconditionFailed"), (416, "InvalidRange")


class Object(NamedTuple):
    """One generation of an object."""

    data: bytes
    generation: int
    changed_at: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


class Upload(NamedTuple):
    """A multipart upload that is neither complete nor aborted."""

    key: str
    parts: dict[int, bytes]


class Page(NamedTuple):
    """A page of a listing, and the name after which the next one begins; None on the last."""

    objects: list[tuple[str, Object]]
    prefixes: list[str]
    next: str | None


class Buckets:
    """Every change is atomic: the condition on the generation and the write happen under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1000)
        self._buckets: dict[str, dict[str, Object]] = {}
        self._uploads: dict[str, dict[str, Upload]] = {}

    def create(self, bucket: str) -> None:
        """Make a bucket; an existing one stays as it is."""
        with self._lock:
            self._buckets.setdefault(bucket, {})
            self._uploads.setdefault(bucket, {})

    def put(self, bucket: str, key: str, data: bytes, *, if_generation: int | None = None) -> Object:
        """Write an object, if its generation is the given one; 0 stands for no object."""
        with self._lock:
            objects = self._objects(bucket)
            found = objects[key].generation if key in objects else 0
            if if_generation not in (None, found):
                raise Refusal(*CHANGED)
            objects[key] = Object(data, next(self._numbers), time.time())
            return objects[key]

    def get(self, bucket: str, key: str) -> Object:
        with self._lock:
            try:
                return self._objects(bucket)[key]
            except KeyError:
                raise Refusal(*NO_KEY) from None

    def delete(self, bucket: str, key: str) -> None:
        with self._lock:
            if self._objects(bucket).pop(key, None) is None:
                raise Refusal(*NO_KEY)

    def list(self, bucket: str, *, prefix: str, delimiter: str, after: str, most: int) -> Page:
        """The objects below a prefix; what goes on after a delimiter is only named by its prefix."""
        with self._lock:
            found = sorted(item for item in self._objects(bucket).items() if item[0].startswith(prefix))
        names: dict[str, Object | None] = {}
        for key, item in found:
            head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            names[prefix + head + mark if mark else key] = None if mark else item
        rest = [(name, item) for name, item in names.items() if name > after]
        page = rest[:most]
        objects = [(name, item) for name, item in page if item is not None]
        prefixes = [name for name, item in page if item is None]
        return Page(objects, prefixes, page[-1][0] if len(rest) > most else None)

    def begin(self, bucket: str, key: str) -> str:
        """A new multipart upload; returns its id."""
        with self._lock:
            self._objects(bucket)
            upload_id = f"upload-{next(self._numbers)}"
            self._uploads[bucket][upload_id] = Upload(key, {})
            return upload_id

    def add_part(self, bucket: str, upload_id: str, number: int, data: bytes) -> None:
        with self._lock:
            self._upload(bucket, upload_id).parts[number] = data

    def complete(self, bucket: str, upload_id: str) -> Object:
        with self._lock:
            upload = self._upload(bucket, upload_id)
            del self._uploads[bucket][upload_id]
        return self.put(bucket, upload.key, b"".join(data for _, data in sorted(upload.parts.items())))

    def abort(self, bucket: str, upload_id: str) -> None:
        with self._lock:
            self._upload(bucket, upload_id)
            del self._uploads[bucket][upload_id]

    def uploads(self, bucket: str, *, prefix: str, after: tuple[str, str], most: int) -> list[tuple[str, str]]:
        """Key and id of each upload after that one, sorted; at most so many and one more."""
        with self._lock:
            self._objects(bucket)
            found = sorted((upload.key, upload_id) for upload_id, upload in self._uploads[bucket].items())
        return [each for each in found if each[0].startswith(prefix) and each > after][: most + 1]

    def _objects(self, bucket: str) -> dict[str, Object]:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise Refusal(*NO_BUCKET) from None

    def _upload(self, bucket: str, upload_id: str) -> Upload:
        try:
            return self._uploads[bucket][upload_id]
        except KeyError:
            raise Refusal(*NO_UPLOAD) from None
