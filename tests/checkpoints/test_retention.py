"""What retention keeps and what it lets go."""

from __future__ import annotations

import pytest

from segue.checkpoints.retention import slots_to_keep, slots_to_prune
from segue.records import CheckpointRef, Environment, Manifest
from segue.runlog.history import Checkpoint
from segue.shard import Shard

ENVIRONMENT = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


def checkpoint(slot, *, metric=None, quarantined=None, is_pruned=False, shards=()):
    return Checkpoint(
        ref=CheckpointRef(slot=slot, step=slot * 10, attempt_id="seg000-a1-e1"),
        manifest=Manifest(
            step=slot * 10,
            samples_seen=0,
            epoch=0,
            shards=tuple(Shard(key=f"{name}.json", size_bytes=0, chunk_bytes=1, chunk_crc32c=()) for name in shards),
            tensor_count=0,
            components={},
            environment=ENVIRONMENT,
            metric=metric,
        ),
        quarantined=quarantined,
        is_pruned=is_pruned,
    )


def kept(checkpoints, *, keep=2, best="min", verified=()):
    return sorted(slots_to_keep(checkpoints, keep=keep, best=best, verified_parents=verified))


def test_the_newest_k_are_kept():
    assert kept([checkpoint(n) for n in range(1, 6)]) == [4, 5]


@pytest.mark.parametrize(("best", "slot"), [("min", 1), ("max", 2)])
def test_the_best_by_metric_is_kept(best, slot):
    ring = [checkpoint(n, metric=m) for n, m in ((1, 0.1), (2, 0.9), (3, 0.5), (4, 0.5))]
    assert kept(ring, best=best) == [slot, 3, 4]


def test_of_equally_good_ones_the_newest_is_the_best():
    assert kept([checkpoint(n, metric=0.5) for n in range(1, 6)]) == [4, 5]


def test_a_quarantined_one_is_evidence_and_does_not_count_as_newest_or_best():
    ring = [checkpoint(1, metric=0.2), checkpoint(2, metric=0.3), checkpoint(3, metric=0.0, quarantined="bad")]
    assert kept([checkpoint(0, metric=0.9), *ring]) == [1, 2, 3]


def test_the_last_verified_boundary_is_pinned_until_its_successor_is_verified():
    ring = [checkpoint(n) for n in range(1, 8)]
    assert kept(ring, verified=[ring[0].ref]) == [1, 6, 7]
    assert kept(ring, verified=[ring[0].ref, ring[3].ref]) == [4, 6, 7]


def test_what_was_pruned_is_neither_kept_nor_pruned_again():
    ring = [checkpoint(1, is_pruned=True), checkpoint(2), checkpoint(3), checkpoint(4)]
    assert slots_to_prune(ring, kept=frozenset(kept(ring))) == (2,)


def test_the_newest_that_shares_no_bytes_with_the_newest_of_all_is_kept():
    shards = {1: "a", 2: "b", 3: "bc", 4: "d", 5: "de", 6: "df"}
    ring = [checkpoint(n, shards=names) for n, names in shards.items()]
    assert kept(ring) == [3, 5, 6]
    assert kept(ring[3:]) == [5, 6], "there is none"
