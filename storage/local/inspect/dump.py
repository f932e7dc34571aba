"""Prints the files of a log folder as text, for `strandline dump-log FILE`.

The name determines the type of a file, as in Kafka; files that were renamed to `.deleted`, or
downloaded under their object names (`<base>-<epoch>-<unique>.log`), are accepted too.

The dump reports damage as a line and stops there; it does not raise. Such lines are of the type
`DamageLine`, as the text of keys and values may look the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import (
    CorruptRecords,
    StrandlineError,
    UnsupportedCodec,
    UnsupportedFormat,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.index import (
    OffsetEntry,
    OffsetIndex,
    TimeIndex,
    iter_offset_entries,
    iter_time_entries,
)
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.local.segment.trash import DELETED_SUFFIX
from strandline.storage.plurals import counted
from strandline.storage.records.batch.any_batch import iter_records, walk_file
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.marker import TransactionMarker, marker_in
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec
from strandline.storage.records.txn_index import decode_entries

# Longer keys and values are cut in the output; a dump is for reading.
PRINTED_BYTES_MAX = 200

_BASE_OFFSET = re.compile(r"[0-9]{20}")
_DELETED = re.compile(rf"(\.\d+)?{re.escape(DELETED_SUFFIX)}$")


class DamageLine(str):
    """A line of the dump that reports damage to the file."""

    __slots__ = ()


def dump_log(path: Path, *, verify: bool, print_records: bool) -> Iterator[str]:
    """Lines that describe the file; `verify` checks the CRC of every batch, or an index's order.

    Raises DiskError if it cannot be read, UnsupportedFormat if its name is of no known type.
    """
    name = _DELETED.sub("", path.name)
    if name.endswith(LOG_SUFFIX):
        yield from _dump_batches(path, verify=verify, print_records=print_records)
        return
    dump = next((dump for suffix, dump in _DUMPS.items() if name.endswith(suffix)), None)
    if dump is None:
        raise UnsupportedFormat(
            f"{path.name}: the name says what a file is, and this is none of .log,"
            f" {', '.join(_DUMPS)}; other files of a log folder are text"
        )
    try:
        yield from dump(path)
    except StrandlineError as error:
        yield DamageLine(f"DAMAGED: {error}")


def _dump_batches(path: Path, *, verify: bool, print_records: bool) -> Iterator[str]:
    file = OpenFile(path, writable=False)
    size_bytes = file.size_bytes()
    position = batch_count = record_count = 0
    try:
        for batch in walk_file(file.read_at, 0, size_bytes, verify_crc=verify):
            yield _batch_line(batch, marker_in(file, batch))
            if print_records:
                content = file.read_at(batch.position, batch.header.size_bytes)
                for record in iter_records(content, batch.header):
                    yield _record_line(record)
            position = batch.end_position
            batch_count += 1
            record_count += batch.header.record_count
    except (CorruptRecords, UnsupportedCodec) as error:
        yield DamageLine(f"DAMAGED at position {position} of {size_bytes}: {error}")
    finally:
        file.close()
    checked = "CRCs verified" if verify else "CRCs not verified"
    yield (
        f"{counted(batch_count, 'batch', 'batches')}, {counted(record_count, 'record')} in"
        f" {counted(position, 'byte')}; {checked}"
    )


def _batch_line(batch: Batch, marker: TransactionMarker | None) -> str:
    header = batch.header
    codec = Codec(header.codec).name.lower() if header.codec in set(Codec) else str(header.codec)
    line = (
        f"batch offsets {header.base_offset}..{header.last_offset} "
        f"records {header.record_count} position {batch.position} bytes {header.size_bytes} "
        f"codec {codec} time {header.base_timestamp_ms}..{header.max_timestamp_ms} "
        f"{header.timestamp_type.name.lower()} epoch {header.leader_epoch} crc {header.crc:#010x}"
    )
    if header.has_producer:
        line += (
            f" producer {header.producer_id}/{header.producer_epoch} "
            f"sequences {header.base_sequence}..{header.last_sequence}"
        )
    if header.is_transactional:
        line += " transactional"
    if header.is_control:
        line += " control"
    if marker is not None:
        line += f" {marker.type.name.lower()} coordinator {marker.coordinator_epoch}"
    return line


def _record_line(record: Record) -> str:
    line = (
        f"| offset {record.offset} time {record.timestamp_ms} "
        f"key {_printable(record.key)} value {_printable(record.value)}"
    )
    for header in record.headers:
        line += f" header {header.key}={_printable(header.value)}"
    return line


def _printable(content: bytes | None) -> str:
    if content is None:
        return "null"
    text = content[:PRINTED_BYTES_MAX].decode("utf-8", "backslashreplace")
    # Control characters in records must not control the reader's terminal.
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    left_out = len(content) - PRINTED_BYTES_MAX
    return f"{text!r}... {counted(left_out, 'more byte')}" if left_out > 0 else repr(text)


def _base_offset(path: Path) -> int:
    match = _BASE_OFFSET.match(path.name)
    return int(match[0]) if match else 0


def _dump_offset_index(path: Path) -> Iterator[str]:
    content = files.read_whole(path)
    base_offset, previous = _base_offset(path), OffsetEntry(-1, -1)
    for row in iter_offset_entries(content):
        last_offset = base_offset + row.relative_offset
        yield f"last offset {last_offset} of the batch at position {row.position}"
        if row.relative_offset <= previous.relative_offset or row.position <= previous.position:
            yield DamageLine("DAMAGED: the entry above does not lie behind the one before")
        previous = row
    yield _entry_count(content, OffsetIndex.ENTRY_BYTES)


def _dump_time_index(path: Path) -> Iterator[str]:
    content = files.read_whole(path)
    base_offset, previous_ms = _base_offset(path), -1
    for timestamp_ms, relative_offset in iter_time_entries(content):
        yield f"time {timestamp_ms} reached at offset {base_offset + relative_offset}"
        if timestamp_ms <= previous_ms:
            yield DamageLine("DAMAGED: the entry above is not later than the one before")
        previous_ms = timestamp_ms
    yield _entry_count(content, TimeIndex.ENTRY_BYTES)


def _entry_count(content: bytes, entry_bytes: int) -> str:
    entry_count, spare_bytes = divmod(len(content), entry_bytes)
    entries = counted(entry_count, "entry", "entries")
    if spare_bytes:
        return DamageLine(f"{entries}; DAMAGED: {counted(spare_bytes, 'byte')} of no whole entry")
    return entries


def _dump_txn_index(path: Path) -> Iterator[str]:
    for entry in decode_entries(files.read_whole(path), source=path.name):
        yield (
            f"producer {entry.producer_id} aborted {entry.first_offset}..{entry.last_offset} "
            f"last stable offset {entry.last_stable_offset}"
        )


def _dump_snapshot(path: Path) -> Iterator[str]:
    for entry in iter_snapshot(files.read_whole(path)):
        yield (
            f"producer {entry.producer_id} epoch {entry.epoch} last sequence {entry.last_sequence} "
            f"last offset {entry.last_offset} offset delta {entry.offset_delta} "
            f"time {entry.timestamp_ms} coordinator epoch {entry.coordinator_epoch} "
            f"transaction since {entry.transaction_first_offset}"
        )


def _dump_epochs(path: Path) -> Iterator[str]:
    for epoch, start_offset in checkpoint.read_epochs(path):
        yield f"epoch {epoch} from offset {start_offset}"


_DUMPS: dict[str, Callable[[Path], Iterator[str]]] = {
    TIME_INDEX_SUFFIX: _dump_time_index,
    TXN_INDEX_SUFFIX: _dump_txn_index,
    INDEX_SUFFIX: _dump_offset_index,
    SNAPSHOT_SUFFIX: _dump_snapshot,
    checkpoint.LEADER_EPOCHS: _dump_epochs,
}
