"""`strandline produce`: sends lines as records.

A refused record does not stop the following ones; the first error is printed at the end, with the
number of refused records, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from strandline.broker.tools.client.connection import (
    REQUEST_SECONDS_MAX,
    ClusterConnection,
    failure_of,
    pair,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.printing import remark
from strandline.broker.tools.client.record_text import NewRecord, record_of_json, record_of_line
from strandline.broker.tools.commands.command_parser import (
    add_connection,
    chosen_connection,
    command_parser,
    partition_number,
)
from strandline.broker.tools.commands.deliveries import Deliveries, DeliveryWatch
from strandline.broker.tools.commands.options import Commands, add_repeated, given_name
from strandline.storage.clock import SystemClock
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from confluent_kafka import Producer

# RD_KAFKA_PARTITION_UA: the client's partitioner chooses.
PARTITION_UA = -1
# librdkafka's value for "now".
TIMESTAMP_OF_SENDING = 0
# Kafka's largest request; an endless line must not fill the memory.
LINE_BYTES_MAX = 100 * 1024 * 1024
# How many records are sent between two polls for deliveries.
RECORDS_PER_POLL = 500
# How long records wait to fill a batch; interactive input does not wait.
LINGER_MS = 20
# Kafka's default of delivery.timeout.ms.
DELIVERY_MS_MAX = 120_000


_EXAMPLES = """
examples:
  echo hello | strandline produce orders
  strandline produce orders --key-separator :            # then type key:value, Ctrl-D ends
  strandline produce orders --file orders.csv --header source=import --compression zstd
  strandline produce pictures --whole --key logo --file logo.png
  strandline consume orders --from start --until-end --json | strandline produce copy --json
  printf 'trace:1,user:ann\\tid7|paid\\n' | \\
      strandline produce orders --parse-headers --key-separator '|'
"""


def add_produce(commands: Commands) -> None:
    parser = command_parser(commands, "produce", "write lines into a topic", _EXAMPLES, _produce)
    parser.add_argument("topic", type=given_name, metavar="TOPIC", help="where to")
    parser.add_argument("--file", type=Path, metavar="FILE", help="instead of standard input")
    form = parser.add_alternatives()
    form.add_argument("--whole", action="store_true", help="the whole input is one record")
    form.add_argument("--json", action="store_true", help="lines as `consume --json` writes them")
    form.add_argument("--key-separator", metavar="TEXT", help="the text between key and value")
    parser.add_argument("--key", help="the same key for every record")
    add_repeated(parser, "--header", "NAME=VALUE", "on every record")
    parser.add_argument(
        "--parse-headers", action="store_true", help="each line begins with name:value,… and a TAB"
    )
    parser.add_argument("--null", metavar="TEXT", help="a key or value of this text is null")
    parser.add_argument(
        "--partition", type=partition_number, metavar="N", help="where to [by key, else spread]"
    )
    parser.add_argument(
        "--compression",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="of the batches that are sent [none]",
    )
    parser.add_argument(
        "--acks",
        default="all",
        choices=("0", "1", "all"),
        help="when a record counts as sent: at once, on the leader, on all in-sync replicas [all]",
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="say nothing on success")
    add_connection(parser)


class _Places:
    """The partitions of the target; asked for once, when a line names one."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._count: int | None = None

    def check(self, partition: int, *, number: int) -> None:
        """Raises WrongUse for a partition that the topic does not have, and ToolFailure."""
        from confluent_kafka import KafkaException

        if self._count is None:
            try:
                found = self._producer.list_topics(self._topic, timeout=REQUEST_SECONDS_MAX)
            except KafkaException as error:
                raise failure_of(error.args[0], f"cannot ask for {self._topic}") from None
            # None of a topic that the first record creates.
            self._count = len(found.topics[self._topic].partitions)
        if 0 < self._count <= partition:
            raise WrongUse(
                f"line {number}: {self._topic} has no partition {partition}, but"
                f" {counted(self._count, 'partition')}; leave the member out, which does not choose"
                " where a record goes, or give --partition"
            )


def _produce(options: argparse.Namespace) -> int:
    """Sends the whole input; returns the exit code."""
    topic, source, quiet = options.topic, options.file, options.quiet
    connection = chosen_connection(options)
    if options.key is not None and options.key_separator is not None:
        raise WrongUse("--key and --key-separator exclude each other")
    if options.key_separator == "":
        raise WrongUse("--key-separator is empty; write the text between key and value")
    connection.check_reachable()
    clock = SystemClock()
    began_s = clock.monotonic_s()
    interactive = source is None and sys.stdin.isatty()
    if interactive and not quiet:
        remark(f"each line becomes a record in {topic}; end with Ctrl-D")
    producer = _make_producer(connection, options, linger_ms=0 if interactive else LINGER_MS)
    deliveries = Deliveries()
    with DeliveryWatch(producer, topic, deliveries, clock, remark):
        try:
            sent_bytes = _send_all(producer, options, deliveries, interactive=interactive)
        except WrongUse as error:
            # Records before the faulty line are sent: to send the corrected file repeats them.
            producer.flush()
            before = counted(deliveries.delivered_count, "record")
            raise WrongUse(
                str(error), remedy=f"{before} before it were written to {topic}"
            ) from None
        finally:
            # Lines that were read are sent, also when Ctrl-C ends the input.
            producer.flush()
    deliveries.check(topic)
    if not quiet:
        elapsed_s = max(clock.monotonic_s() - began_s, 1e-9)
        remark(
            f"wrote {counted(deliveries.delivered_count, 'record')},"
            f" {counted(sent_bytes, 'byte')} of values, to {topic} in {elapsed_s:.1f} s"
        )
    return 0


def _make_producer(
    connection: ClusterConnection, options: argparse.Namespace, *, linger_ms: int
) -> Producer:
    from confluent_kafka import Producer

    with settings_checked():
        return Producer(
            connection.client_settings(
                acks=options.acks,
                enable_idempotence=options.acks == "all",
                compression_type=options.compression,
                linger_ms=linger_ms,
                message_max_bytes=LINE_BYTES_MAX,
                message_timeout_ms=DELIVERY_MS_MAX,
            ),
            logger=quiet_logger(),
        )


def _send_all(
    producer: Producer, options: argparse.Namespace, deliveries: Deliveries, *, interactive: bool
) -> int:
    """Sends all input; returns the bytes of the values. Raises ToolFailure."""
    topic = options.topic
    headers = [(name, value.encode()) for name, value in map(pair, options.header)]
    places = _Places(producer, topic)
    fixed_key = _encoded(options.key)
    sent_bytes = 0
    with _opened(options.file) as stream:
        for count, record in enumerate(_records(stream, options), start=1):
            if record.partition is not None and options.partition is None:
                places.check(record.partition, number=count)
            _send(
                producer,
                topic,
                record,
                key=record.key if fixed_key is None else fixed_key,
                headers=[*headers, *record.headers],
                partition=options.partition,
                deliveries=deliveries,
            )
            sent_bytes += len(record.value or b"")
            if interactive or count % RECORDS_PER_POLL == 0:
                producer.poll(0)
    return sent_bytes


def _send(
    producer: Producer,
    topic: str,
    record: NewRecord,
    *,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    partition: int | None,
    deliveries: Deliveries,
) -> None:
    """Sends one record; waits for room in the client's queue. Raises ToolFailure if invalid."""
    from confluent_kafka import KafkaException

    # The library's value for "chosen by the partitioner".
    place = PARTITION_UA if partition is None else partition
    timestamp_ms = TIMESTAMP_OF_SENDING if record.timestamp_ms is None else record.timestamp_ms
    while True:
        try:
            producer.produce(
                topic,
                value=record.value,
                key=key,
                headers=list(headers),
                on_delivery=deliveries.note,
                partition=place,
                timestamp=timestamp_ms,
            )
        except BufferError:
            # Delivery reports, or timeouts, free the queue.
            producer.poll(0.1)
        except KafkaException as error:
            raise failure_of(error.args[0], f"cannot write to {topic}") from None
        else:
            return


def _records(stream: BinaryIO, options: argparse.Namespace) -> Iterator[NewRecord]:
    if options.whole:
        yield NewRecord(value=_bounded(stream.read(LINE_BYTES_MAX + 1)))
        return
    separator, null_text = _encoded(options.key_separator), _encoded(options.null)
    for number, line in enumerate(_lines(stream), start=1):
        try:
            if options.json:
                yield _with_a_time(record_of_json(line))
            else:
                yield record_of_line(
                    line,
                    key_separator=separator,
                    parse_headers=options.parse_headers,
                    null_text=null_text,
                )
        except WrongUse as error:
            raise WrongUse(f"line {number}: {error}") from None


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _with_a_time(record: NewRecord) -> NewRecord:
    """Checks that the record's time can be sent. Raises WrongUse."""
    if record.timestamp_ms == TIMESTAMP_OF_SENDING:
        raise WrongUse(
            "a timestamp of 0 cannot be sent: the client library takes it for the time of sending;"
            " write 1, or leave the timestamp out"
        )
    return record


def _lines(stream: BinaryIO) -> Iterable[bytes]:
    while line := stream.readline(LINE_BYTES_MAX + 2):
        yield _bounded(line.removesuffix(b"\n").removesuffix(b"\r"))


def _bounded(content: bytes) -> bytes:
    if len(content) > LINE_BYTES_MAX:
        raise WrongUse(f"a record of more than {LINE_BYTES_MAX >> 20} MiB")
    return content


def _opened(source: Path | None) -> BinaryIO:
    if source is None:
        return sys.stdin.buffer
    try:
        return source.open("rb")
    except OSError as error:
        raise ToolFailure(f"cannot read {source}: {error.strerror}") from None
