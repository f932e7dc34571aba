"""The hash that compaction tells keys apart by, against the vectors of its authors."""

from __future__ import annotations

import numpy as np
import pytest

from strandline.storage.records.kernels import compaction as compaction_kernels

# SipHash-2-4 with 128 bits, key and input counting up from 0 (vectors.h of the reference).
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}


@pytest.mark.slow
def test_keys_are_hashed_as_the_authors_of_siphash_say() -> None:
    """Compaction trusts the hash alone: two keys with the same one would be taken for one."""
    k0, k1 = (np.uint64(int.from_bytes(bytes(range(n, n + 8)), "little")) for n in (0, 8))
    hashes = {}
    for length in VECTORS:
        halves = compaction_kernels.hash_key(np.frombuffer(bytes(range(length)), np.uint8), k0, k1)
        hashes[length] = b"".join(int(half).to_bytes(8, "little") for half in halves).hex()
    assert hashes == VECTORS
