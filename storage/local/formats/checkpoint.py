"""Kafka's small text files in a log folder.

    recovery-point-offset-checkpoint      version line, count line, then
    log-start-offset-checkpoint           `topic partition offset` lines
    replication-offset-checkpoint
    cleaner-offset-checkpoint

    moves-into-this-folder                the same, with `topic partition topic-id`; not Kafka's
    leader-epoch-checkpoint               version, count, `epoch start-offset` lines
    partition.metadata                    version: 0 / topic_id: <22 characters>
    meta.properties                       version=1, node.id, cluster.id, directory.id
    .kafka_cleanshutdown                  there after a clean stop only

Each is replaced as a whole, so a reader sees the old file or the new one, never a torn one.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from strandline.storage import entropy, files
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import ZERO_TOPIC_ID, EpochStart, TopicId, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
MOVES = "moves-into-this-folder"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

CHECKPOINT_VERSION = 0
OFFSET_MAX = 2**63 - 1
# How much of a malformed line an error shows: after a power cut a file may be full of zeros.
SHOWN_CHARACTERS_MAX = 40
# Of a broker without controllers, or an unknown one.
NO_BROKER_EPOCH = -1
META_PROPERTIES_VERSION = 1


def read_text(path: Path | str) -> str | None:
    """Returns the file as text, None if it does not exist. Raises DiskError, CorruptFile."""
    content = files.read_if_there(path)
    try:
        return None if content is None else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path} is not text") from error


def _read_rows(path: Path | str, columns: int) -> list[list[str]]:
    """Returns the rows of a checkpoint file, split; an absent or empty file has none."""
    text = read_text(path)
    if not text:
        return []
    lines = text.splitlines()
    try:
        version, expected_count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError):
        raise CorruptFile(f"{path} does not begin with a version and a count") from None
    if version != CHECKPOINT_VERSION:
        raise UnsupportedFormat(f"{path} has version {version}, known is {CHECKPOINT_VERSION}")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(rows) != expected_count:
        raise CorruptFile(f"{path} promises {expected_count} entries and has {len(rows)}")
    for row in rows:
        if len(row) != columns:
            raise CorruptFile(f"{path}: {' '.join(row)!r} does not have {columns} fields")
    return rows


def _write_rows(path: Path | str, rows: Iterable[str], *, sync: bool) -> None:
    lines = list(rows)
    content = "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines]) + "\n"
    files.write_atomically(Path(path), content.encode(), sync=sync)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Returns an offset checkpoint. Raises CorruptFile, UnsupportedFormat, DiskError."""
    try:
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in _read_rows(path, 3)
        }
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}") from error
    # A log start behind the end empties a log, so numbers that cannot be offsets are refused.
    if offsets and max(offsets.values()) > OFFSET_MAX:
        raise CorruptFile(f"{path} has an offset of more than 63 bits")
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces an offset checkpoint and syncs it. Raises DiskError."""
    rows = (f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items()))
    _write_rows(path, rows, sync=True)


def read_epochs(path: Path | str) -> list[EpochStart]:
    """A leader-epoch checkpoint, in its order. Raises CorruptFile, UnsupportedFormat, DiskError."""
    try:
        return [EpochStart(int(epoch), int(start)) for epoch, start in _read_rows(path, 2)]
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}") from error


def write_epochs(path: Path | str, epochs: Sequence[EpochStart], *, sync: bool) -> None:
    """Writes `leader-epoch-checkpoint` as Kafka does. Raises DiskError."""
    _write_rows(path, (f"{epoch.epoch} {epoch.start_offset}" for epoch in epochs), sync=sync)


def read_moves(path: Path) -> dict[TopicPartition, TopicId]:
    """Returns the pending moves into a folder, in order. Raises the errors of `read_offsets`."""
    try:
        return {
            TopicPartition(topic, int(partition)): decode_id(topic_id)
            for topic, partition, topic_id in _read_rows(path, 3)
        }
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}") from error


def write_moves(path: Path, moves: Mapping[TopicPartition, TopicId]) -> None:
    """Replaces `moves-into-this-folder` and syncs it. Raises DiskError."""
    rows = (f"{key.topic} {key.partition} {encode_id(id_)}" for key, id_ in moves.items())
    _write_rows(path, rows, sync=True)


# --- the clean-shutdown mark ---------------------------------------------------------------------


def write_clean_shutdown(path: Path, broker_epoch: int) -> None:
    """Writes the mark, with the epoch under which the controllers knew the broker (KIP-966).

    Raises DiskError.
    """
    files.write_atomically(path, b'{"version":0,"brokerEpoch":%d}' % broker_epoch)


def read_clean_shutdown(path: Path) -> int:
    """Returns the broker epoch of the mark; -1 if it has none, as those of older Kafkas."""
    try:
        found = json.loads(read_text(path) or "{}")
    except (ValueError, CorruptFile):
        return NO_BROKER_EPOCH
    epoch = found.get("brokerEpoch") if isinstance(found, dict) else None
    return epoch if type(epoch) is int else NO_BROKER_EPOCH


# --- ids ---------------------------------------------------------------------------------------


def encode_id(value: uuid.UUID) -> str:
    """Kafka's text form of a uuid: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_id(text: str) -> uuid.UUID:
    """Returns the uuid in Kafka's text form. Raises CorruptFile if `text` is not one."""
    try:
        # Strict: the decoder would skip characters outside the alphabet.
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except ValueError as error:
        raise CorruptFile(f"{text!r} is no id") from error


def random_id() -> str:
    """A new id that does not begin with `-`, as command lines would take it for an option."""
    while (text := encode_id(entropy.new_id())).startswith("-"):
        pass
    return text


# --- partition.metadata ------------------------------------------------------------------------


def read_topic_id(folder: Path) -> TopicId | None:
    """Returns the topic id of a partition folder; None if a Kafka before 2.8 created it."""
    path = f"{folder}/{PARTITION_METADATA}"
    text = read_text(path)
    if text is None:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptFile(f"{path} has no version 0 and topic_id")
    try:
        topic_id = decode_id(fields["topic_id"])
    except CorruptFile as error:
        raise CorruptFile(f"{path}: {error}") from error
    if topic_id == ZERO_TOPIC_ID:
        # Kafka treats this as damage, too: otherwise the topic would seem to have no id.
        raise CorruptFile(f"{path} has the topic_id of no topic")
    return topic_id


def write_topic_id(folder: Path, topic_id: TopicId) -> None:
    """Writes `partition.metadata` as Kafka does. Raises DiskError."""
    content = f"version: 0\ntopic_id: {encode_id(topic_id)}\n"
    files.write_atomically(folder / PARTITION_METADATA, content.encode())


# --- meta.properties ---------------------------------------------------------------------------


def read_properties(path: Path) -> dict[str, str] | None:
    """Java properties, as far as Kafka's own files use them; None if the file does not exist."""
    text = read_text(path)
    if text is None:
        return None
    properties = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise CorruptFile(f"{path}: {stripped[:SHOWN_CHARACTERS_MAX]!r} is no key=value")
        properties[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return properties


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes Java properties, sorted by key. Raises DiskError."""
    content = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
    files.write_atomically(path, content.encode())
