"""A save hashes and sums its bytes in one pass, with the digests and checksums that separate passes would have."""

from __future__ import annotations

import crc32c
import pytest
import torch

from segue.checkpoints.format.digests import hash_bytes
from segue.checkpoints.saving import write
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.write import CHUNK_BYTES, write_checkpoint
from segue.checkpoints.saving.written import Save
from segue.stores import LocalStore

MB = 2**20


@pytest.mark.parametrize(
    "sizes",
    [
        (3,),
        (),
        (0, 5, 0),
        (CHUNK_BYTES - 4096, 4096, 7),
        (2 * CHUNK_BYTES,),
        (11, 3 * CHUNK_BYTES + 13, 1, 256 * 1024, 256 * 1024 + 1, 5 * MB, CHUNK_BYTES),
        tuple(range(1, 700)),
    ],
)
def test_one_pass_gives_the_hash_of_each_tensor_and_the_checksum_of_each_chunk(tmp_path, sizes):
    state = {f"t{number}": torch.randint(0, 255, (size,), dtype=torch.uint8) for number, size in enumerate(sizes)}
    store, area = LocalStore(tmp_path).create(), StagingArea()
    staged = area.take({"model": state})
    written, base = write_checkpoint(
        [store],
        Save("run", "seg000-a1-e1", 1),
        shard_file=memoryview(staged.staging_buffer.memory)[: staged.layout.size_bytes],
        shard_layout=staged.layout,
        skeletons={"model": b"{}"},
    )
    shard_file = next(shard for shard in written.shards if shard.key.endswith(".safetensors"))
    blob = (tmp_path / "run" / shard_file.key).read_bytes()
    starts = range(0, len(blob), CHUNK_BYTES)
    assert shard_file.chunk_crc32c == tuple(crc32c.crc32c(blob[start : start + CHUNK_BYTES]) for start in starts)
    assert write.checksums(blob) == shard_file.chunk_crc32c
    expected = {f"model.{name}": hash_bytes(tensor.numpy().tobytes()) for name, tensor in state.items()}
    assert {name: digest.digest for name, digest in base.tensors.items()} == expected
    area.release(staged)
    area.close()
