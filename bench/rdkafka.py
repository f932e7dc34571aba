"""librdkafka at its own speed, without a compiler: ctypes sets up, numba runs the loops.

    confluent_kafka.libs/librdkafka-*.so ── ctypes ──> handles, queues, topics      (once)
                                         └─ numba ──> produce_batch / consume_batch (per record)

The wheel of confluent-kafka carries librdkafka as a shared object. Its Python binding makes one
object for each record, and a benchmark driven through it measures that. Here no Python code runs
per record: the loops are compiled, hold no interpreter lock, and call the library's functions by
address. Several clients may run in threads of one process.

Pointers are passed as `uintptr` numbers: numba cannot do arithmetic on `void *`. The loops read
`rd_kafka_message_t` as an array of eight-byte words (see MESSAGE_*), which is its layout on every
64-bit Linux: err i32, rkt *, partition i32, payload *, len, key *, key_len, offset i64, private *.

A consumer checks that the offsets of each partition go up without a gap (or only go up, where the
log may have been compacted), a producer that no delivery failed.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

WORD_BYTES = 8
# rd_kafka_message_t in words.
MESSAGE_WORDS = 9
MESSAGE_ERROR, MESSAGE_PARTITION, MESSAGE_PAYLOAD, MESSAGE_LENGTH, MESSAGE_OFFSET = 0, 2, 3, 4, 7
_LOW_32_BITS = 0xFFFFFFFF

_PRODUCER, _CONSUMER = 0, 1
_OFFSET_BEGINNING = -2
_FLAG_COPY = 2
_ERROR_TEXT_BYTES = 512
_CONSUME_BATCH = 4096
_METADATA_TIMEOUT_MS = 30_000
# librdkafka itself gives a record up after five minutes.
_FLUSH_TIMEOUT_MS = 300_000
# Bytes that one process keeps in its producers' queues: enough for the requests of many
# connections in flight, and small beside the memory of a machine that also runs two brokers.
OUTSTANDING_BYTES = 64 * 1024 * 1024
BATCH_HEADER_BYTES = 61
# Lengths, deltas and attributes of a record at their longest.
RECORD_OVERHEAD_BYTES = 36
# Distinct records of a producer. Larger than any batch, so that no codec finds the same record
# twice in a batch and packs better than it would on real data.
POOL_BYTES = 8 * 1024 * 1024

# --- the library -----------------------------------------------------------------------------


def _open_library() -> ctypes.CDLL:
    """The librdkafka that belongs to the installed confluent_kafka."""
    package = Path(confluent_kafka.__file__).parent
    found = sorted((package.parent / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    if not found:
        raise RuntimeError("this confluent_kafka does not carry a librdkafka of its own")
    return ctypes.CDLL(found[0])


_pointer, _text = ctypes.c_size_t, ctypes.c_char_p
_int, _int32, _int64, _size = ctypes.c_int, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_library = _open_library()


def _function(name: str, result: object, *arguments: object) -> Callable[..., int]:
    function = getattr(_library, "rd_kafka_" + name)
    function.restype, function.argtypes = result, arguments
    return function


_conf_new = _function("conf_new", _pointer)
_conf_set = _function("conf_set", _int, _pointer, _text, _text, _text, _size)
_conf_set_opaque = _function("conf_set_opaque", None, _pointer, _pointer)
_conf_set_report = _function("conf_set_dr_msg_cb", None, _pointer, _pointer)
_conf_set_log = _function("conf_set_log_cb", None, _pointer, _pointer)
_new = _function("new", _pointer, _int, _pointer, _text, _size)
_destroy = _function("destroy", None, _pointer)
_topic_new = _function("topic_new", _pointer, _pointer, _text, _pointer)
_topic_destroy = _function("topic_destroy", None, _pointer)
_metadata = _function("metadata", _int, _pointer, _int, _pointer, ctypes.c_void_p, _int)
_metadata_destroy = _function("metadata_destroy", None, _pointer)
_queue_new = _function("queue_new", _pointer, _pointer)
_queue_destroy = _function("queue_destroy", None, _pointer)
_consume_start = _function("consume_start_queue", _int, _pointer, _int32, _int64, _pointer)
_consume_stop = _function("consume_stop", _int, _pointer, _int32)
_error_text = _function("err2name", _pointer, _int)
# What the compiled loops call.
_poll = _function("poll", _int, _pointer, _int)
_outstanding = _function("outq_len", _int, _pointer)
_flush = _function("flush", _int, _pointer, _int)
_produce_batch = _function("produce_batch", _int, _pointer, _int32, _int, _pointer, _int)
_consume = _function("consume_queue", _pointer, _pointer, _int)
_consume_batch = _function("consume_batch_queue", ctypes.c_ssize_t, _pointer, _int, _pointer, _size)
_message_destroy = _function("message_destroy", None, _pointer)

_libc = ctypes.CDLL(None)
_clock_gettime = _libc.clock_gettime
_clock_gettime.restype, _clock_gettime.argtypes = _int, (_int, _pointer)
_usleep = _libc.usleep
_usleep.restype, _usleep.argtypes = _int, (ctypes.c_uint,)
_CLOCK_MONOTONIC = 1


@intrinsic
def _words(typing_context, address):
    """The address as a pointer to words that compiled code can index."""
    signature = types.CPointer(types.int64)(types.uintp)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


# --- loops -----------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _now_ns(clock):
    _clock_gettime(_CLOCK_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@numba.cfunc("void(uintp, uintp, uintp)")
def _count_failure(handle, message, counters):
    """Of the delivery reports only failures arrive: delivery.report.only.error is set."""
    words = _words(counters)
    words[0] += 1
    words[1] = _words(message)[MESSAGE_ERROR] & _LOW_32_BITS


@numba.njit(nogil=True)
def _produce_loop(
    handles, topics, partition_count, messages, pool, pool_stride, per_call, count, outstanding_max
):
    """Hands `count` records round the connections and, a call's worth at a time, the partitions."""
    pool_count = pool.size // pool_stride
    payload_address = pool.ctypes.data
    sent = at = call = 0
    while sent < count:
        connection = call % handles.size
        handle = handles[connection]
        # Its queue is full: others first, and this one's events are served when it is its turn.
        if _outstanding(handle) + per_call > outstanding_max:
            _poll(handle, 1 if handles.size == 1 else 0)
            if handles.size > 1:
                full = 0
                for other in handles:
                    if _outstanding(other) + per_call > outstanding_max:
                        full += 1
                if full == handles.size:
                    _usleep(200)
                call += 1
            continue
        number = min(per_call, count - sent)
        for i in range(number):
            messages[i, MESSAGE_ERROR] = 0
            messages[i, MESSAGE_PAYLOAD] = payload_address + at * pool_stride
            messages[i, MESSAGE_LENGTH] = pool_stride
            at = at + 1 if at + 1 < pool_count else 0
        done = _produce_batch(
            topics[connection],
            (call // handles.size) % partition_count
            if partition_count >= handles.size
            else call % partition_count,
            0,
            messages.ctypes.data,
            number,
        )
        if done != number:
            return sent + done
        sent += number
        call += 1
    for handle in handles:
        while _outstanding(handle) > 0:
            if _flush(handle, _FLUSH_TIMEOUT_MS) != 0:
                return -1
    return sent


@numba.njit(nogil=True)
def _consume_loop(queue, pointers, next_offsets, sums, count, idle_ms_max, contiguous):
    """Takes `count` records off a queue. Returns an error code, 0 when all is well."""
    got = value_bytes = idle_ms = 0
    while got < count:
        number = _consume_batch(queue, 200, pointers.ctypes.data, min(pointers.size, count - got))
        if number <= 0:
            idle_ms += 200
            if idle_ms > idle_ms_max:
                break
            continue
        idle_ms = 0
        for i in range(number):
            message = _words(pointers[i])
            error = np.int32(message[MESSAGE_ERROR] & _LOW_32_BITS)
            if error != 0:
                sums[0], sums[1] = got, value_bytes
                return error
            partition = message[MESSAGE_PARTITION] & _LOW_32_BITS
            offset, expected = message[MESSAGE_OFFSET], next_offsets[partition]
            if offset < expected or (contiguous and offset != expected):
                sums[0], sums[1], sums[2], sums[3] = got, value_bytes, offset, expected
                return 1
            next_offsets[partition] = offset + 1
            value_bytes += message[MESSAGE_LENGTH]
            _message_destroy(pointers[i])
        got += number
    sums[0], sums[1] = got, value_bytes
    return 0


@numba.njit(nogil=True)
def _paced_loop(handle, topic, partition_count, message, payload, count, interval_ns, clock):
    """Sends a record each interval. Its first word is the time at which it was due, so that a
    producer that falls behind shows as latency and is not left out of it.
    """
    due_ns = _now_ns(clock)
    for number in range(count):
        wait_ns = due_ns - _now_ns(clock)
        # A sleep is 50 us late at the least; a shorter wait is made by sending at once.
        while wait_ns > 60_000:
            _usleep(np.uint32(min(wait_ns // 1000 - 50, 100_000)))
            wait_ns = due_ns - _now_ns(clock)
        payload[0] = due_ns
        message[0, MESSAGE_ERROR] = 0
        while (
            _produce_batch(topic, number % partition_count, _FLAG_COPY, message.ctypes.data, 1) != 1
        ):
            _poll(handle, 1)
            message[0, MESSAGE_ERROR] = 0
        due_ns += interval_ns
    return _flush(handle, _FLUSH_TIMEOUT_MS)


@numba.njit(nogil=True)
def _latency_loop(queue, latencies_ns, idle_ms_max, clock):
    """The age of each record as it arrives; how many came, or the error as a negative number.

    One at a time: `consume_batch_queue` would wait until its array is full.
    """
    got = 0
    while got < latencies_ns.size:
        pointer = _consume(queue, idle_ms_max)
        if pointer == 0:
            break
        message = _words(pointer)
        error = np.int32(message[MESSAGE_ERROR] & _LOW_32_BITS)
        if error != 0:
            return min(error, -error)
        latencies_ns[got] = _now_ns(clock) - _words(message[MESSAGE_PAYLOAD])[0]
        got += 1
        _message_destroy(pointer)
    return got


# --- clients ---------------------------------------------------------------------------------


class ClientError(RuntimeError):
    """librdkafka refused something, or a record did not arrive."""


def error_name(code: int) -> str:
    return ctypes.string_at(_error_text(code)).decode()


def _new_handle(kind: int, settings: Mapping[str, str | int], counters: np.ndarray | None) -> int:
    conf = _conf_new()
    text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
    for name, value in settings.items():
        if _conf_set(conf, name.encode(), str(value).encode(), text, _ERROR_TEXT_BYTES):
            raise ClientError(text.value.decode())
    # Lines about brokers that go away are part of what is measured here, not news.
    _conf_set_log(conf, 0)
    if counters is not None:
        _conf_set_opaque(conf, counters.ctypes.data)
        _conf_set_report(conf, _count_failure.address)
    handle = _new(kind, conf, text, _ERROR_TEXT_BYTES)
    if not handle:
        raise ClientError(text.value.decode())
    return int(handle)


def _new_topic(handle: int, name: str) -> int:
    """The topic's handle, after its metadata was fetched: the connection is up then."""
    topic = _topic_new(handle, name.encode(), 0)
    answer = ctypes.c_size_t()
    error = _metadata(handle, 0, topic, ctypes.addressof(answer), _METADATA_TIMEOUT_MS)
    if error:
        raise ClientError(f"metadata of {name}: {error_name(error)}")
    _metadata_destroy(answer.value)
    return int(topic)


class _PartitionMetadata(ctypes.Structure):
    _fields_ = (
        ("id", _int32),
        ("error", _int),
        ("leader", _int32),
        ("replica_count", _int),
        ("replicas", ctypes.c_void_p),
        ("in_sync_count", _int),
        ("in_sync", ctypes.c_void_p),
    )


class _TopicMetadata(ctypes.Structure):
    _fields_ = (
        ("name", _text),
        ("partition_count", _int),
        ("partitions", ctypes.POINTER(_PartitionMetadata)),
        ("error", _int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("broker_count", _int),
        ("brokers", ctypes.c_void_p),
        ("topic_count", _int),
        ("topics", ctypes.POINTER(_TopicMetadata)),
    )


def topic_is_led(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether a broker answers, and says that every partition of the topic has a leader."""
    handle = _new_handle(_PRODUCER, {"bootstrap.servers": bootstrap}, None)
    topic_handle = _topic_new(handle, topic.encode(), 0)
    answer = ctypes.POINTER(_Metadata)()
    try:
        if _metadata(handle, 0, topic_handle, ctypes.addressof(answer), 500):
            return False
        found = answer.contents.topics[0]
        led = sum(found.partitions[i].leader >= 0 for i in range(found.partition_count))
        is_led = found.error == 0 and led == partitions
        _metadata_destroy(ctypes.cast(answer, ctypes.c_void_p).value)
        return is_led
    finally:
        _topic_destroy(topic_handle)
        _destroy(handle)


@functools.cache
def record_pool(record_bytes: int, *, seed: int = 1) -> np.ndarray:
    """Records one after another; nobody may change them.

    Half of each is random and half is words, like a log line with identifiers in it.
    """
    source = random.Random(seed)
    words = [source.randbytes(source.randint(3, 9)).hex().encode() for _ in range(512)]
    count = max(POOL_BYTES // record_bytes, 2)
    pool = bytearray()
    while len(pool) < count * record_bytes:
        pool += b" ".join(source.choices(words, k=6)) + source.randbytes(36)
    return np.frombuffer(bytes(pool[: count * record_bytes]), dtype=np.uint8).copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceLoad:
    """What producers send."""

    topic: str
    count: int
    record_bytes: int = 1000
    # 0: each record is a batch and a request of its own.
    batch_bytes: int = 16_384
    partitions: int = 1
    connections: int = 1
    acks: int = 1
    codec: str = "none"
    idempotent: bool = False
    linger_ms: float = 5
    settings: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def value_bytes(self) -> int:
        return self.count * self.record_bytes

    def client_settings(self, bootstrap: str) -> dict[str, str | int]:
        single = self.batch_bytes == 0
        return {
            "bootstrap.servers": bootstrap,
            "acks": self.acks,
            "linger.ms": 0 if single else self.linger_ms,
            "batch.size": max(self.batch_bytes, 1000),
            "batch.num.messages": 1 if single else 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "message.max.bytes": 3_000_000,
            "compression.codec": self.codec,
            "enable.idempotence": str(self.idempotent).lower(),
            "delivery.report.only.error": "true",
            **self.settings,
        }


class Producers:
    """The connections of a load, open and ready; `run` is the part to be timed."""

    def __init__(self, bootstrap: str, load: ProduceLoad) -> None:
        self._load = load
        self._counters = np.zeros(2, dtype=np.int64)
        self._handles: list[int] = []
        self._topics: list[int] = []
        settings = load.client_settings(bootstrap)
        for _ in range(load.connections):
            self._handles.append(_new_handle(_PRODUCER, settings, self._counters))
        self._topics += [_new_topic(handle, load.topic) for handle in self._handles]
        self._pool = record_pool(load.record_bytes)
        # As many as librdkafka puts into one batch, by its own reckoning of what they take: one
        # more would wait for linger.ms in each partition and go as a batch of one.
        record_bytes_max = load.record_bytes + RECORD_OVERHEAD_BYTES
        per_batch = max((load.batch_bytes - BATCH_HEADER_BYTES) // record_bytes_max, 1)
        self._messages = np.zeros((per_batch, MESSAGE_WORDS), dtype=np.int64)
        # A call with nothing to do compiles the loop; so do the other clients.
        self._send(0)

    def run(self) -> None:
        """Sends everything and returns when it is acknowledged; raises ClientError otherwise."""
        sent = self._send(self._load.count)
        for handle in self._handles:
            _poll(handle, 0)
        failures, code = self._counters.tolist()
        if failures or sent != self._load.count:
            signed = code - (1 << 32) if code >> 31 else code
            raise ClientError(
                f"{sent} of {self._load.count} sent, {failures} failed, last {error_name(signed)}"
            )

    def _send(self, count: int) -> int:
        load = self._load
        per_call = len(self._messages)
        outstanding_max = OUTSTANDING_BYTES // load.record_bytes // load.connections
        sent = _produce_loop(
            np.array(self._handles, dtype=np.uintp),
            np.array(self._topics, dtype=np.uintp),
            load.partitions,
            self._messages,
            self._pool,
            load.record_bytes,
            per_call,
            count,
            max(min(outstanding_max, 1_000_000), 2 * per_call, 16),
        )
        return int(sent)

    def close(self) -> None:
        for topic in self._topics:
            _topic_destroy(topic)
        for handle in self._handles:
            _destroy(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeLoad:
    """What one consumer reads: `count` records of all partitions together."""

    topic: str
    count: int
    partitions: int = 1
    check_crcs: bool = False
    partition_bytes: int = 1 << 20
    fetch_bytes: int = 50 << 20
    # Short: a consumer of many partitions asks first for those whose beginnings it has looked up,
    # and must not wait half a second for more of them once they are read to their ends.
    wait_ms: int = 10
    queued_kbytes: int = 1 << 17
    # Records that are not there within this time are an error.
    idle_s: float = 60
    contiguous: bool = True
    settings: Mapping[str, str | int] = field(default_factory=dict)

    def client_settings(self, bootstrap: str) -> dict[str, str | int]:
        return {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "check.crcs": str(self.check_crcs).lower(),
            "fetch.message.max.bytes": self.partition_bytes,
            "fetch.max.bytes": self.fetch_bytes,
            "receive.message.max.bytes": max(self.fetch_bytes, self.partition_bytes) + (1 << 20),
            "fetch.wait.max.ms": self.wait_ms,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": self.queued_kbytes,
            "fetch.queue.backoff.ms": 1,
            **self.settings,
        }


class Consumer:
    """One connected consumer of all partitions of a topic, from their beginnings."""

    def __init__(self, bootstrap: str, load: ConsumeLoad) -> None:
        self._load = load
        self._handle = _new_handle(_CONSUMER, load.client_settings(bootstrap), None)
        self._topic = _new_topic(self._handle, load.topic)
        self._queue = int(_queue_new(self._handle))
        self._pointers = np.zeros(_CONSUME_BATCH, dtype=np.uintp)
        self._started = False
        self._take(0, 0, np.zeros(4, dtype=np.int64))
        self.latencies_us(0)

    def start(self, offsets: Sequence[int] | None = None) -> None:
        """Begins to fetch; `run` does it where the caller does not."""
        for partition in range(self._load.partitions):
            first = offsets[partition] if offsets else _OFFSET_BEGINNING
            if _consume_start(self._topic, partition, first, self._queue):
                raise ClientError(f"cannot consume partition {partition}")
        self._started = True

    def run(self, *, first_offset: int = 0) -> int:
        """Reads everything; the sum of the values' bytes. Raises ClientError."""
        if not self._started:
            self.start([first_offset] * self._load.partitions if first_offset else None)
        load = self._load
        sums = np.zeros(4, dtype=np.int64)
        error = self._take(load.count, first_offset, sums)
        got, value_bytes, offset, expected = sums.tolist()
        if error == 1:
            raise ClientError(f"offset {offset} came where {expected} was due")
        if error:
            raise ClientError(error_name(error))
        if got != load.count:
            raise ClientError(f"{got} of {load.count} records within {load.idle_s} s of quiet")
        return int(value_bytes)

    def _take(self, count: int, first_offset: int, sums: np.ndarray) -> int:
        load = self._load
        next_offsets = np.full(load.partitions, first_offset, dtype=np.int64)
        idle_ms_max = int(load.idle_s * 1000)
        error = _consume_loop(
            self._queue, self._pointers, next_offsets, sums, count, idle_ms_max, load.contiguous
        )
        return int(error)

    def latencies_us(self, count: int) -> np.ndarray:
        """The ages of the next `count` records, see Pacer."""
        latencies_ns = np.zeros(count, dtype=np.int64)
        clock = np.zeros(2, dtype=np.int64)
        got = int(_latency_loop(self._queue, latencies_ns, int(self._load.idle_s * 1000), clock))
        if got != count:
            raise ClientError(f"{got} of {count} records came" if got >= 0 else error_name(got))
        return latencies_ns / 1000

    def close(self) -> None:
        if self._started:
            for partition in range(self._load.partitions):
                _consume_stop(self._topic, partition)
        _queue_destroy(self._queue)
        _topic_destroy(self._topic)
        _destroy(self._handle)


class Pacer:
    """A producer of one record at a time at a fixed rate, whose records carry their due time."""

    def __init__(self, bootstrap: str, load: ProduceLoad) -> None:
        self._load = load
        self._counters = np.zeros(2, dtype=np.int64)
        self._handle = _new_handle(_PRODUCER, load.client_settings(bootstrap), self._counters)
        self._topic = _new_topic(self._handle, load.topic)
        self._payload = np.zeros(-(-load.record_bytes // WORD_BYTES), dtype=np.int64)
        pool = record_pool(load.record_bytes)
        self._payload.view(np.uint8)[: load.record_bytes] = pool[: load.record_bytes]
        self._message = np.zeros((1, MESSAGE_WORDS), dtype=np.int64)
        self._message[0, MESSAGE_PAYLOAD] = self._payload.ctypes.data
        self._message[0, MESSAGE_LENGTH] = load.record_bytes
        self._send(0, 1)

    def run(self, *, records_per_s: float) -> None:
        """Sends the load's records. Raises ClientError if one was not acknowledged."""
        left = self._send(self._load.count, int(1e9 / records_per_s))
        if left or self._counters[0]:
            raise ClientError(f"{self._counters[0]} records failed, flush: {error_name(left)}")

    def _send(self, count: int, interval_ns: int) -> int:
        clock = np.zeros(2, dtype=np.int64)
        topic, partitions = self._topic, self._load.partitions
        left = _paced_loop(
            self._handle,
            topic,
            partitions,
            self._message,
            self._payload,
            count,
            interval_ns,
            clock,
        )
        return int(left)

    def close(self) -> None:
        _topic_destroy(self._topic)
        _destroy(self._handle)


@contextmanager
def producers(bootstrap: str, load: ProduceLoad) -> Iterator[Producers]:
    """Connected producers, and their end."""
    made = Producers(bootstrap, load)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def consumer(bootstrap: str, load: ConsumeLoad) -> Iterator[Consumer]:
    """A connected consumer, and its end."""
    made = Consumer(bootstrap, load)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def pacer(bootstrap: str, load: ProduceLoad) -> Iterator[Pacer]:
    """A connected producer at a fixed rate, and its end."""
    made = Pacer(bootstrap, load)
    try:
        yield made
    finally:
        made.close()
