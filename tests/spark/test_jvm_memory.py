"""Batches that a few bytes make larger than the JVM: an error, and a session that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from strandline.spark_lake import load
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.record import with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.remote.object_store.interface import checksum
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)
from tests.unit.storage.records.made_records import varint

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MIB = 1024 * 1024
VALUE_BYTES = 400 * MIB
# What the JVM has left: for Spark plenty, for the value too little.
LEFT_BYTES = 300 * MIB


def bomb(offset: int) -> bytes:
    """A batch of some KB with one record of VALUE_BYTES."""
    head = bytes(3) + varint(-1) + varint(VALUE_BYTES)
    length = varint(len(head) + VALUE_BYTES + 1)
    packer = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    parts = [packer.compress(length + head)]
    parts += [packer.compress(bytes(MIB)) for _ in range(VALUE_BYTES // MIB)]
    body = b"".join([*parts, packer.compress(b"\0"), packer.flush()])
    size = batch_format.BATCH_LENGTH_MIN + len(body)
    times = (START_MS, START_MS)
    header = batch_format.HEADER.pack(offset, size, 0, 2, 0, Codec.ZSTD, 0, *times, -1, -1, -1, 1)
    return bytes(with_crc(bytearray(header + body)))


@contextmanager
def full_jvm(spark: SparkSession) -> Iterator[None]:
    """All but LEFT_BYTES of the heap is held."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    runtime = gateway.jvm.java.lang.Runtime.getRuntime()
    gateway.jvm.java.lang.System.gc()
    left = runtime.maxMemory() - runtime.totalMemory() + runtime.freeMemory()
    # In pieces, for which the heap need not have one hole. Bytes would be copied over here.
    count = max(0, left - LEFT_BYTES) // (16 * MIB)
    held = [gateway.new_array(gateway.jvm.long, 2 * MIB - 8) for _ in range(count)]
    try:
        yield
    finally:
        for one in held:
            gateway.detach(one)
        held.clear()
        gateway.jvm.java.lang.System.gc()


def test_a_batch_larger_than_the_memory_is_an_error_and_no_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    for topic in ("good", "bad"):
        archive.add_topic(topic)
        archive.add_segment(topic, make_batches(make_records(10)))
    # Small as it is, nobody asks for its statistics.
    entry = archive.add_segment("bad", make_batches(make_records(1, base_offset=10)))
    log = bomb(entry.base_offset)
    archive.store.put(entry.log_key, log)
    manifest = archive.manifest("bad")
    changed = replace(entry, size_bytes=len(log), log_crc32c=checksum(log))
    archive.save(replace(manifest, segments=(*manifest.segments[:-1], changed)))
    jvm = {"engine": "jvm"}
    with full_jvm(spark):
        frame = load(spark, archive.url, "bad", columns=["offset"], options=jvm)
        with pytest.raises(Py4JJavaError) as refused:
            frame.collect()
        assert entry.log_key in str(refused.value)
        assert "the JVM has no memory for" in str(refused.value)
        assert len(load(spark, archive.url, "good", options=jvm).collect()) == 10
