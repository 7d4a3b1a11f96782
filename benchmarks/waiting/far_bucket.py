"""A bucket on this machine whose every request takes a round trip."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.crash.places import made_up_keys, moto_server, new_bucket
from benchmarks.waiting.far_s3 import far_s3
from segue.spec import StoreSpec


@contextmanager
def far_bucket(*, latency_seconds: float) -> Iterator[tuple[StoreSpec, StoreSpec]]:
    """A prefix of a bucket on moto's server, as a store without delay, and as a store with a round trip for each
    request."""
    with made_up_keys(), moto_server() as url, new_bucket(url) as bucket:
        prefix = f"s3://{bucket}/{uuid.uuid4().hex}"
        with far_s3(url, latency_seconds=latency_seconds) as far_url:
            yield StoreSpec(url=prefix, endpoint_url=url), StoreSpec(url=prefix, endpoint_url=far_url)
