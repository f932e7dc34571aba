"""Batch headers: what is decoded, what is refused, what stamping leaves alone."""

from __future__ import annotations

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import check_crc, read_header, stamp
from strandline.storage.records.batch.record import Record, encode_batch, iter_records, with_crc
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.made_records import encoded

# Written out by hand from the format's description: key "k", value "hello", 14 November 2023.
GOLDEN = bytes.fromhex(
    "0000000000000000"
    "0000003e"
    "ffffffff"
    "02"
    "00000000"
    "0000"
    "00000000"
    "0000018bcfe56800"
    "0000018bcfe56800"
    "ffffffffffffffff"
    "ffff"
    "ffffffff"
    "00000001"
    "18"
    "00"
    "00"
    "00"
    "02"
    "6b"
    "0a"
    "68656c6c6f"
    "00"
)


def test_a_header_is_decoded_field_by_field() -> None:
    header = read_header(encoded())
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 7)
    assert (header.record_count, header.last_sequence, header.leader_epoch) == (3, 9, 5)
    assert header.is_transactional
    assert not header.is_control
    assert header.has_producer
    assert header.codec == Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.size_bytes == len(encoded())


def test_the_golden_batch_decodes_to_its_record() -> None:
    golden = bytes(with_crc(bytearray(GOLDEN)))
    header = read_header(golden)
    check_crc(golden, header)
    (record,) = iter_records(golden, header)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"hello", 1_700_000_000_000)
    again = encode_batch([record])
    assert again[batch_format.CRC_START :] == golden[batch_format.CRC_START :]


def test_sequences_wrap_at_two_to_the_31() -> None:
    records = [Record(offset=n, timestamp_ms=0, key=None, value=None) for n in range(3)]
    header = read_header(encode_batch(records, producer_id=1, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


@pytest.mark.parametrize("length", [0, 1, batch_format.HEADER_BYTES - 1])
def test_a_torn_header_is_refused(length: int) -> None:
    with pytest.raises(CorruptRecords, match="61 bytes"):
        read_header(encoded()[:length])


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_another_magic_is_refused(magic: int) -> None:
    damaged = bytearray(encoded())
    damaged[batch_format.MAGIC_POSITION] = magic
    with pytest.raises(CorruptRecords, match="magic"):
        read_header(damaged)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, batch_format.BATCH_LENGTH_MIN - 1])
def test_an_impossible_batch_length_is_refused(length: int) -> None:
    damaged = bytearray(encoded())
    damaged[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecords, match="length"):
        read_header(damaged)


def test_any_flipped_bit_behind_the_crc_is_found() -> None:
    good = encoded()
    for position in range(batch_format.CRC_POSITION, len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        with pytest.raises(CorruptRecords, match="CRC"):
            check_crc(damaged, read_header(damaged))


def test_a_batch_that_is_cut_short_fails_its_crc_check() -> None:
    good = encoded()
    with pytest.raises(CorruptRecords, match="left"):
        check_crc(good[:-1], read_header(good))


def test_stamping_changes_offset_and_epoch_and_keeps_the_crc() -> None:
    run = bytearray(encoded() + encoded(base_offset=43))
    second = len(run) // 2
    stamp(run, second, 5000, 77)
    header = read_header(run, second)
    check_crc(run, header, second)
    assert (header.base_offset, header.leader_epoch) == (5000, 77)
    assert run[:second] == encoded()
    assert run[second + batch_format.MAGIC_POSITION :] == encoded(base_offset=43)[16:]
