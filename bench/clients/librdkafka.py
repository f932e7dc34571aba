"""librdkafka without its Python binding: functions by ctypes, handles of clients and topics.

The wheel of confluent-kafka carries librdkafka as a shared object. Its functions begin with `rd_`
here, and the table says which is which. Pointers are passed as `uintptr` numbers: numba, whose
loops call some of these (`client_loops`), cannot do arithmetic on `void *`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka

PRODUCER, CONSUMER = 0, 1
OFFSET_BEGINNING = -2
_ERROR_TEXT_BYTES = 512
_METADATA_TIMEOUT_MS = 30_000

# --- functions -------------------------------------------------------------------------------


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


rd_conf_new = _function("conf_new", _pointer)
rd_conf_set = _function("conf_set", _int, _pointer, _text, _text, _text, _size)
rd_conf_set_opaque = _function("conf_set_opaque", None, _pointer, _pointer)
rd_conf_set_report = _function("conf_set_dr_msg_cb", None, _pointer, _pointer)
rd_conf_set_log = _function("conf_set_log_cb", None, _pointer, _pointer)
rd_new = _function("new", _pointer, _int, _pointer, _text, _size)
rd_destroy = _function("destroy", None, _pointer)
rd_topic_new = _function("topic_new", _pointer, _pointer, _text, _pointer)
rd_topic_destroy = _function("topic_destroy", None, _pointer)
rd_metadata = _function("metadata", _int, _pointer, _int, _pointer, ctypes.c_void_p, _int)
rd_metadata_destroy = _function("metadata_destroy", None, _pointer)
rd_queue_new = _function("queue_new", _pointer, _pointer)
rd_queue_destroy = _function("queue_destroy", None, _pointer)
rd_consume_start = _function("consume_start_queue", _int, _pointer, _int32, _int64, _pointer)
rd_consume_stop = _function("consume_stop", _int, _pointer, _int32)
rd_error_text = _function("err2name", _pointer, _int)
# These return an error object, or 0: see `refused`.
rd_init_transactions = _function("init_transactions", _pointer, _pointer, _int)
rd_begin_transaction = _function("begin_transaction", _pointer, _pointer)
rd_commit_transaction = _function("commit_transaction", _pointer, _pointer, _int)
rd_error_string = _function("error_string", _text, _pointer)
rd_error_destroy = _function("error_destroy", None, _pointer)
# What the compiled loops call.
rd_poll = _function("poll", _int, _pointer, _int)
rd_outstanding = _function("outq_len", _int, _pointer)
rd_flush = _function("flush", _int, _pointer, _int)
rd_produce_batch = _function("produce_batch", _int, _pointer, _int32, _int, _pointer, _int)
rd_consume = _function("consume_queue", _pointer, _pointer, _int)
rd_consume_callback = _function("consume_callback_queue", _int, _pointer, _int, _pointer, _pointer)
rd_message_destroy = _function("message_destroy", None, _pointer)

_libc = ctypes.CDLL(None)
clock_gettime = _libc.clock_gettime
clock_gettime.restype, clock_gettime.argtypes = _int, (_int, _pointer)
usleep = _libc.usleep
usleep.restype, usleep.argtypes = _int, (ctypes.c_uint,)


# --- handles ---------------------------------------------------------------------------------


class ClientError(RuntimeError):
    """librdkafka refused something, or a record did not arrive."""


def error_name(code: int) -> str:
    return ctypes.string_at(rd_error_text(code)).decode()


def refused(error: int) -> None:
    """Raises ClientError if a function returned an error object."""
    if error:
        text = rd_error_string(error)
        rd_error_destroy(error)
        raise ClientError(str(text))


def new_handle(
    kind: int, settings: Mapping[str, str | int], *, report: int = 0, opaque: int = 0
) -> int:
    """A client. `report` is the address of what delivery reports are given to, with `opaque`."""
    conf = rd_conf_new()
    text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
    for name, value in settings.items():
        if rd_conf_set(conf, name.encode(), str(value).encode(), text, _ERROR_TEXT_BYTES):
            raise ClientError(text.value.decode())
    # Lines about brokers that go away are part of what is measured here, not news.
    rd_conf_set_log(conf, 0)
    if report:
        rd_conf_set_opaque(conf, opaque)
        rd_conf_set_report(conf, report)
    handle = rd_new(kind, conf, text, _ERROR_TEXT_BYTES)
    if not handle:
        raise ClientError(text.value.decode())
    return int(handle)


def new_topic(handle: int, name: str) -> int:
    """The topic's handle, after its metadata was fetched: the connection is up then."""
    topic = rd_topic_new(handle, name.encode(), 0)
    answer = ctypes.c_size_t()
    error = rd_metadata(handle, 0, topic, ctypes.addressof(answer), _METADATA_TIMEOUT_MS)
    if error:
        raise ClientError(f"metadata of {name}: {error_name(error)}")
    rd_metadata_destroy(answer.value)
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
    handle = new_handle(PRODUCER, {"bootstrap.servers": bootstrap})
    topic_handle = rd_topic_new(handle, topic.encode(), 0)
    answer = ctypes.POINTER(_Metadata)()
    try:
        if rd_metadata(handle, 0, topic_handle, ctypes.addressof(answer), 500):
            return False
        found = answer.contents.topics[0]
        led = sum(found.partitions[i].leader >= 0 for i in range(found.partition_count))
        is_led = found.error == 0 and led == partitions
        rd_metadata_destroy(ctypes.cast(answer, ctypes.c_void_p).value)
        return is_led
    finally:
        rd_topic_destroy(topic_handle)
        rd_destroy(handle)
