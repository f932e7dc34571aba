"""What an old consumer is given of a batch of today's."""

from __future__ import annotations

import pytest

from strandline.storage.errors import DecompressedTooLarge
from strandline.storage.records.batch import down_conversion
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.old_shapes import read_back


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(("count", "value_bytes"), [(1, 20_000), (1_000, 0)])
def test_what_an_old_consumer_would_be_given_of_one_batch_is_bounded(
    codec: Codec, count: int, value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of nothing has five times the bytes of a record of nothing."""
    records = [
        Record(offset=offset, timestamp_ms=7, key=None, value=bytes(value_bytes))
        for offset in range(count)
    ]
    content = encode_batch(records, codec=codec)
    converted = down_conversion.down_convert(content, magic=1, start_offset=0)
    assert read_back(converted) == records
    monkeypatch.setattr(down_conversion, "CONVERTED_BYTES_MAX", 16_000)
    with pytest.raises(DecompressedTooLarge):
        down_conversion.down_convert(content, magic=1, start_offset=0)
