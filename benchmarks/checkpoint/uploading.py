"""An uploader's process: uploads and training steps, each timed alone."""

from __future__ import annotations

import gc
import time

import torch

from benchmarks.checkpoint.savers import make_state, state_bytes
from benchmarks.checkpoint.steps import Slowdown, StepKind, StepSizes, slowdown
from benchmarks.checkpoint.uploads import Bucket, Uploader, boto3_client, make_uploader, use_keys_of


class IncompleteUploadError(Exception):
    """The store has fewer bytes than the upload."""

    def __init__(self, *, key: str, expected_bytes: int, found_bytes: int) -> None:
        self.key, self.expected_bytes, self.found_bytes = key, expected_bytes, found_bytes
        super().__init__(f"{key}: {found_bytes} bytes arrived of at least {expected_bytes}")


class UploaderBench:
    """One uploader and the state it uploads."""

    def __init__(self, name: str, *, size_bytes: int, tensors: int, bucket: Bucket, threads: int) -> None:
        torch.set_num_threads(threads)
        self._state = make_state(size_bytes=size_bytes, tensors=tensors)
        self._name, self._bucket = name, bucket
        use_keys_of(bucket)
        self._uploader: Uploader = make_uploader(name)
        self._client = boto3_client(bucket)
        self._count = 0
        self._is_prepared = False

    def note(self) -> str:
        return self._uploader.note

    def prepare(self) -> None:
        """Connect, and upload once so that connections and memory are warm."""
        self._is_prepared = True
        self._uploader.prepare(self._state, self._bucket)
        self.upload()

    def upload(self) -> float:
        """Seconds of one upload. The object is then checked and deleted.

        Raises:
            IncompleteUploadError: the store does not have the whole object.
        """
        gc.collect()
        key = self._next_key()
        started = time.perf_counter()
        self._uploader.start(key)
        self._uploader.wait()
        seconds = time.perf_counter() - started
        self._check_and_delete(key)
        return seconds

    def slowdown(self, kind: StepKind, sizes: StepSizes) -> Slowdown:
        """Training steps while uploads run in the background."""
        keys: list[str] = []

        def start() -> None:
            keys.append(self._next_key())
            self._uploader.start(keys[-1])

        try:
            return slowdown(kind, sizes, start=start, wait=self._uploader.wait)
        finally:
            for key in keys:
                self._check_and_delete(key)

    def close(self) -> None:
        if self._is_prepared:
            self._uploader.close()
        self._client.close()

    def _next_key(self) -> str:
        self._count += 1
        # All of one length, so that none is the beginning of another.
        return f"{self._name}/{self._count:06}"

    def _check_and_delete(self, key: str) -> None:
        listing = self._client.list_objects_v2(Bucket=self._bucket.name, Prefix=key).get("Contents", ())
        found = {item["Key"]: item["Size"] for item in listing}
        if sum(found.values()) < state_bytes(self._state):
            raise IncompleteUploadError(
                key=key, expected_bytes=state_bytes(self._state), found_bytes=sum(found.values())
            )
        for name in found:
            self._client.delete_object(Bucket=self._bucket.name, Key=name)
