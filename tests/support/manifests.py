"""The manifest a commit would have, for tests that write images without a log."""

from __future__ import annotations

from segue.checkpoints.saving.written import Written
from segue.records import Environment, Manifest

_HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


def manifest_of(written: Written, step: int) -> Manifest:
    return Manifest(
        step=step,
        samples_seen=step,
        epoch=0,
        shards=written.shards,
        tensor_count=written.tensor_count,
        new_bytes=written.new_bytes,
        saves_since_full=written.saves_since_full,
        components=written.components,
        environment=_HERE,
    )
